"""Streams of runs for front ends: AG-UI, and the data stream of the Vercel AI SDK.

    from agent_core.frontends import ai_sdk

    asked = ai_sdk.read_chat(await request.json())
    handle = await runtime.start(asked.message, history=asked.history)
    return StreamingResponse(ai_sdk.stream(handle), headers=ai_sdk.HEADERS)

Each adapter reads the request of its client, and writes the events of a run as the client expects
them. Both are thin: what a run may do, and whose session it continues, is the program's decision.
"""
