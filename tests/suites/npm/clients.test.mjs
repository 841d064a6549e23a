// OpenAI's client for JavaScript and Vercel's AI SDK, whose zod schemas refuse what is not of the API, against SUITE_BASE_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = process.env.SUITE_BASE_URL;
// Lets a toy close what a grammar made it open.
const logit_bias = JSON.parse(process.env.SUITE_LOGIT_BIAS);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const messages = [{ role: "user", content: "What is 2 + 3?" }];
const asked = { model: "default", messages, max_tokens: 24, temperature: 0 };
const Sum = z.object({ first: z.number().int(), second: z.number().int(), comment: z.string() });
const parameters = { type: "object", properties: { input: { type: "integer" } }, required: ["input"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "double", description: "Doubles a number.", parameters } }];

async function streamed(body) {
  const texts = {}, finished = {};
  let usage = null;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...asked, ...body, ...options })) {
    for (const { index, delta, finish_reason } of chunk.choices) {
      texts[index] = (texts[index] ?? "") + (delta.content ?? "");
      if (finish_reason) finished[index] = finish_reason;
    }
    usage = chunk.usage ?? usage;
  }
  return { texts, finished, usage };
}

for (const [name, body] of Object.entries({ plain: {}, several: { n: 2 }, stop: { stop: ["answer"] } })) {
  test(`openai: ${name}, streamed as whole`, async () => {
    const whole = await client.chat.completions.create({ ...asked, ...body });
    const { texts, finished, usage } = await streamed(body);
    for (const { index, message, finish_reason } of whole.choices) {
      assert.equal(texts[index], message.content);
      assert.equal(finished[index], finish_reason);
    }
    assert.equal(whole.choices.length, body.n ?? 1);
    assert.deepEqual(usage, whole.usage);
  });
}

test("openai: the helper that collects a stream", async () => {
  const whole = await client.chat.completions.create(asked);
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test("openai: logprobs", async () => {
  const whole = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2 });
  const { content } = whole.choices[0].logprobs;
  assert.equal(content.length, whole.usage.completion_tokens);
  for (const one of content) {
    assert.equal(one.top_logprobs.length, 2);
    assert.equal(one.top_logprobs[0].token, one.token);
  }
});

test("openai: an answer of a schema", async () => {
  const format = { response_format: zodResponseFormat(Sum, "sum"), logit_bias, max_tokens: 200 };
  const answer = await client.chat.completions.parse({ ...asked, ...format });
  assert.deepEqual(Object.keys(answer.choices[0].message.parsed).sort(), ["comment", "first", "second"]);
});

test("openai: a tool, streamed as whole", async () => {
  const body = { ...asked, tools, tool_choice: "required", logit_bias, max_tokens: 96 };
  const whole = (await client.chat.completions.create(body)).choices[0];
  const final = (await client.chat.completions.stream(body).finalChatCompletion()).choices[0];
  for (const { message, finish_reason } of [whole, final]) {
    assert.equal(finish_reason, "tool_calls", JSON.stringify(message));
    assert.equal(message.tool_calls.length, 1);
    assert.equal(message.tool_calls[0].function.name, "double");
    assert.equal(typeof JSON.parse(message.tool_calls[0].function.arguments).input, "number");
  }
  assert.deepEqual(
    JSON.parse(final.message.tool_calls[0].function.arguments),
    JSON.parse(whole.message.tool_calls[0].function.arguments),
  );
});

test("openai: completions and models", async () => {
  const body = { model: "default", prompt: "2 + 3 =", max_tokens: 6, temperature: 0 };
  const whole = await client.completions.create(body);
  let text = "";
  for await (const chunk of await client.completions.create({ ...body, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
  const [{ id }] = (await client.models.list()).data;
  assert.equal((await client.models.retrieve(id)).id, id);
});

test("openai: errors are of its classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, top_p: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.code, error.param, error.type], ["invalid_value", "top_p", "invalid_request_error"]);
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(client.models.retrieve("nothing"), OpenAI.NotFoundError);
});

const provider = createOpenAICompatible({ name: "dspark", baseURL, apiKey: "x", includeUsage: true, supportsStructuredOutputs: true });
const bent = createOpenAICompatible({
  name: "dspark", baseURL, apiKey: "x", includeUsage: true, supportsStructuredOutputs: true,
  transformRequestBody: (body) => ({ ...body, logit_bias }),
});
const prompted = { prompt: "What is 2 + 3?", temperature: 0, maxRetries: 0 };

test("ai: text, streamed as whole", async () => {
  const given = { ...prompted, model: provider("default"), maxOutputTokens: 24 };
  const whole = await generateText(given);
  const stream = streamText(given);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
  assert.deepEqual((await stream.usage).outputTokens, whole.usage.outputTokens);
  assert.ok(whole.usage.outputTokens > 0 && whole.usage.inputTokens > 0);
});

test("ai: an object, streamed as whole", async () => {
  const given = { ...prompted, model: bent("default"), schema: Sum, maxOutputTokens: 200 };
  const whole = await generateObject(given);
  const stream = streamObject(given);
  for await (const _ of stream.partialObjectStream);
  assert.deepEqual(await stream.object, whole.object);
});

test("ai: a tool is called with its arguments", async () => {
  const called = [];
  const double = tool({
    description: "Doubles a number.",
    inputSchema: jsonSchema(parameters),
    execute: async ({ input }) => (called.push(input), 2 * input),
  });
  const given = { ...prompted, model: bent("default"), tools: { double }, toolChoice: "required", maxOutputTokens: 96, stopWhen: stepCountIs(1) };
  const whole = await generateText(given);
  const stream = streamText(given);
  await stream.consumeStream();
  assert.equal(whole.finishReason, "tool-calls");
  assert.equal(called.length, 2);
  assert.deepEqual((await stream.toolCalls)[0].input, whole.toolCalls[0].input);
  assert.equal(whole.toolResults[0].output, 2 * whole.toolCalls[0].input.input);
});

test("ai: errors", async () => {
  await assert.rejects(generateText({ ...prompted, model: provider("default"), topP: 9 }), (error) => {
    assert.deepEqual([error.name, error.statusCode, error.isRetryable], ["AI_APICallError", 400, false]);
    assert.match(error.message, /top_p/);
    return true;
  });
});
