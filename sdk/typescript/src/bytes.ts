import { InvalidArgumentError } from "./error.ts";
import { partsOf } from "./transport.ts";

/** Data that can be sent to a process or written to a file. Text is sent as UTF-8. */
export type Data = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

interface BufferConstructor {
  from(text: string, encoding: "base64"): Uint8Array;
  from(memory: ArrayBufferLike, at: number, length: number): { toString(encoding: "base64"): string };
}

const { Buffer } = globalThis as { Buffer?: BufferConstructor };

export function fromBase64(text: string): Uint8Array {
  if (Buffer !== undefined) {
    const bytes = Buffer.from(text, "base64");
    return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

export function toBase64(bytes: Uint8Array): string {
  if (Buffer !== undefined) {
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  }
  let text = "";
  for (let at = 0; at < bytes.length; at += 32 << 10) {
    text += String.fromCharCode(...bytes.subarray(at, at + (32 << 10)));
  }
  return btoa(text);
}

/** Returns data as bytes, or as parts if it is a stream. */
export function bodyOf(parameter: string, data: Data): Uint8Array | AsyncIterable<Uint8Array> {
  if (typeof data === "string") {
    return new TextEncoder().encode(data);
  }
  if (data instanceof Uint8Array) {
    return data;
  }
  if (data instanceof ArrayBuffer) {
    return new Uint8Array(data);
  }
  if (typeof Blob !== "undefined" && data instanceof Blob) {
    return partsOf(data.stream());
  }
  if (data instanceof ReadableStream) {
    return partsOf(data);
  }
  if (typeof data === "object" && data !== null && Symbol.asyncIterator in data) {
    return data;
  }
  throw new InvalidArgumentError(parameter, `${String(data)}: want a string, bytes, a Blob or a stream of bytes`);
}
