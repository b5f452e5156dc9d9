/** Who looks at the page: asks the API, signs in with a key, signs out. The key itself is kept nowhere. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, problem } from "./api";

export type Session = "unknown" | "signed-out" | "signed-in";

/** Asked before anything else is, so that a stranger's page sends no requests that would be refused. */
export function useSession(): [Session, (session: Session) => void] {
  const [session, setSession] = useState<Session>("unknown");
  useEffect(() => {
    const stop = new AbortController();
    void isSignedIn(stop.signal).then((yes) => {
      if (!stop.signal.aborted) setSession(yes ? "signed-in" : "signed-out");
    });
    return () => stop.abort();
  }, []);
  return [session, setSession];
}

/** Without an answer the page goes on, and tells of the failure where it tells of others. */
async function isSignedIn(signal: AbortSignal): Promise<boolean> {
  try {
    const response = await fetch("/api/v1/session/state", { signal });
    return !response.ok || ((await response.json()) as { signed_in?: unknown }).signed_in === true;
  } catch {
    return true;
  }
}

export async function signIn(key: string): Promise<void> {
  await send("POST", JSON.stringify({ key: key.trim() }));
}

export async function signOut(): Promise<void> {
  await send("DELETE", null);
}

async function send(method: "POST" | "DELETE", body: string | null): Promise<void> {
  let response: Response;
  try {
    response = await fetch("/api/v1/session", { method, body, headers: { "content-type": "application/json" } });
  } catch {
    throw new ApiError("Headrace cannot be reached", "The server does not answer. It may be stopped or restarting.");
  }
  if (!response.ok) throw problem(response.status, await response.json().catch(() => null));
}
