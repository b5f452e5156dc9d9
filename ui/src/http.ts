/**
 * Requests to the API, and the one way they fail: every failure (network, timeout, problem document, foreign answer) becomes an
 * ApiError with words fit for people. Knows no endpoint.
 */

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly title: string,
    readonly detail: string,
    /** The HTTP status, or null when no answer came. */
    readonly status: number | null = null,
  ) {
    super(detail === "" ? title : `${title}: ${detail}`);
  }
}

export type Method = "GET" | "POST" | "PATCH" | "DELETE";

export const REQUEST_TIMEOUT_MS = 10_000;

/** The JSON answer; null where there is none to give (204). */
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
    if (signal.aborted) throw cause; // the page moved on: nobody is told
    if (timeout.aborted) throw new ApiError("Headrace is not responding", `No response within ${timeoutMs / 1000} s.`);
    throw unreachableError();
  }
  const body = parseJson(text);
  if (!response.ok) throw fromProblemDocument(response.status, body);
  if (response.status === 204) return null;
  if (body === undefined) throw unexpectedResponse(path);
  return body;
}

/** An answer with these lists in it; anything else comes from another release, or from somebody in between. */
export async function getChecked<T>(path: string, signal: AbortSignal, ...lists: string[]): Promise<T> {
  const body = await request("GET", path, signal);
  if (!isRecord(body) || lists.some((name) => !Array.isArray(body[name]))) throw unexpectedResponse(path);
  return body as T;
}

/** An RFC 9457 problem document, or whatever a proxy in between said, as an ApiError. */
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
