/**
 * Requests to the API. Every failure (network, timeout, problem document, unexpected response) becomes an ApiError with a readable
 * message. Independent of endpoints.
 */

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly title: string,
    readonly detail: string,
    /** HTTP status; null without a response. */
    readonly status: number | null = null,
  ) {
    super(detail === "" ? title : `${title}: ${detail}`);
  }
}

export type Method = "GET" | "POST" | "PATCH" | "DELETE";

export const REQUEST_TIMEOUT_MS = 10_000;

/** Send a request and return the JSON of the response; null for 204. */
export async function request(method: Method, path: string, signal: AbortSignal, requestBody?: unknown, timeoutMs = REQUEST_TIMEOUT_MS): Promise<unknown> {
  const timeout = AbortSignal.timeout(timeoutMs);
  const headers: Record<string, string> = { accept: "application/json, application/problem+json" };
  if (requestBody !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      method,
      headers,
      signal: AbortSignal.any([signal, timeout]),
      ...(requestBody === undefined ? {} : { body: JSON.stringify(requestBody) }),
    });
    text = await response.text();
  } catch (cause) {
    if (signal.aborted) throw cause; // the caller has aborted
    if (timeout.aborted) throw new ApiError("Headrace is not responding", `No response within ${timeoutMs / 1000} s.`);
    throw unreachableError();
  }
  const body = parseJson(text);
  if (!response.ok) throw fromProblemDocument(response.status, body);
  if (response.status === 204) return null;
  if (body === undefined) throw unexpectedResponse(path);
  return body;
}

/** Get an object that contains these lists. Anything else comes from another release or from a proxy, and throws ApiError. */
export async function getChecked<T>(path: string, signal: AbortSignal, ...lists: string[]): Promise<T> {
  const body = await request("GET", path, signal);
  if (!isRecord(body) || lists.some((name) => !Array.isArray(body[name]))) throw unexpectedResponse(path);
  return body as T;
}

/** Get an object that contains these objects, like `getChecked`. */
export async function getObject<T>(path: string, signal: AbortSignal, ...names: string[]): Promise<T> {
  const body = await request("GET", path, signal);
  if (!isRecord(body) || names.some((name) => !isRecord(body[name]))) throw unexpectedResponse(path);
  return body as T;
}

/** Convert an RFC 9457 problem document, or any error body of a proxy, to an ApiError. */
export function fromProblemDocument(status: number, body: unknown): ApiError {
  const fields = isRecord(body) ? body : {};
  const title = typeof fields["title"] === "string" && fields["title"] !== "" ? fields["title"] : `The server returned status ${status}`;
  const detail = typeof fields["detail"] === "string" ? fields["detail"] : "";
  return new ApiError(title, detail, status);
}

export function toApiError(cause: unknown): ApiError {
  return cause instanceof ApiError ? cause : new ApiError("Dashboard error", String(cause));
}

export function unreachableError(): ApiError {
  return new ApiError("Cannot reach Headrace", "The server is not responding. It may be stopped or restarting.");
}

function unexpectedResponse(path: string): ApiError {
  return new ApiError("Unexpected response", `The dashboard cannot read the response of ${path}. If Headrace was upgraded, reload the page.`);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
