// Plays the client of AG-UI: says each text, and answers what is asked.
// Usage: node ag_ui.mjs URL THREAD_ID ANSWER TEXT...; prints messages, events and state as JSON.
// ANSWER is yes, no, cancelled, or a payload as JSON.
import { HttpAgent } from "@ag-ui/client";

const [url, threadId, answer, ...texts] = process.argv.slice(2);
const payload = answer.startsWith("{")
  ? JSON.parse(answer)
  : { approved: answer === "yes", reason: answer };
const events = [];
const failures = [];
const agent = new HttpAgent({ url, threadId });
const watching = {
  onEvent: ({ event }) => void events.push(event),
  onRunFailed: ({ error }) => void failures.push(String(error)),
};

for (const [number, text] of texts.entries()) {
  agent.addMessage({ id: `user-${number}`, role: "user", content: text });
  let input = {};
  for (;;) {
    const from = events.length;
    await agent.runAgent(input, watching).catch((error) => failures.push(String(error)));
    const finished = events.slice(from).find((event) => event.type === "RUN_FINISHED");
    const asked = finished?.outcome?.interrupts ?? [];
    if (asked.length === 0) break;
    input = {
      resume: asked.map((each) => ({
        interruptId: each.id,
        ...(answer === "cancelled" ? { status: "cancelled" } : { status: "resolved", payload }),
      })),
    };
  }
}
console.log(JSON.stringify({ messages: agent.messages, events, failures, state: agent.state }));
