// Plays the client of the Vercel AI SDK, as useChat does: says each text, and answers what is asked.
// Usage: node ai_sdk.mjs URL CHAT_ID ANSWER TEXT...; prints the messages as JSON.
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
} from "ai";

const [url, id, answer, ...texts] = process.argv.slice(2);

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => this.messages.push(message);
  popMessage = () => this.messages.pop();
  replaceMessage = (index, message) => (this.messages[index] = message);
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {}

const chat = new Chat({
  id,
  state: new State(),
  transport: new DefaultChatTransport({ api: url }),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
});

for (const text of texts) {
  await chat.sendMessage({ text });
  const asked = chat.messages
    .at(-1)
    .parts.filter((part) => part.state === "approval-requested");
  for (const part of asked) {
    await chat.addToolApprovalResponse({
      id: part.approval.id,
      approved: answer === "yes",
      reason: answer,
    });
  }
  while (chat.status === "submitted" || chat.status === "streaming") {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
console.log(
  JSON.stringify({
    messages: chat.messages,
    status: chat.status,
    error: chat.error?.message,
  }),
);
