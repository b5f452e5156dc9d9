/** Who looks at the page: asks the API, signs in with a key, signs out. The key itself is kept nowhere. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { getCurrentKey } from "./api";
import { request } from "./http";
import type { CurrentKey } from "./apiTypes";

export type Session = { state: "unknown" } | { state: "signed-out" } | { state: "signed-in"; currentKey: CurrentKey | null };

/** Asked before anything else is, so that a stranger's page sends no requests that would be refused. */
export function useSession(): { session: Session; reload: () => void; markSignedOut: () => void } {
  const [session, setSession] = useState<Session>({ state: "unknown" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    void loadSession(stop.signal).then((loaded) => {
      if (!stop.signal.aborted) setSession(loaded);
    });
    return () => stop.abort();
  }, [round]);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  const markSignedOut = useCallback(() => setSession({ state: "signed-out" }), []);
  return { session, reload, markSignedOut };
}

/** Without an answer the page goes on, and tells of the failure where it tells of others. */
async function loadSession(signal: AbortSignal): Promise<Session> {
  try {
    const { signed_in: signedIn } = (await request("GET", "/api/v1/session/state", signal)) as { signed_in?: unknown };
    return signedIn === true ? { state: "signed-in", currentKey: await getCurrentKey(signal) } : { state: "signed-out" };
  } catch {
    return { state: "signed-in", currentKey: null };
  }
}

export function canOperate(key: CurrentKey | null): boolean {
  return key !== null && key.level !== "read";
}

export function canAdminister(key: CurrentKey | null): boolean {
  return key?.level === "admin";
}

/** Incidents of Headrace itself are no tenant's: they are seen by keys that reach everything. */
export function hasFullScope(key: CurrentKey | null): boolean {
  return key !== null && key.scope.org === null && key.scope.project === null && key.scope.env === null;
}

export async function signIn(key: string): Promise<void> {
  await request("POST", "/api/v1/session", new AbortController().signal, { key: key.trim() });
}

export async function signOut(): Promise<void> {
  await request("DELETE", "/api/v1/session", new AbortController().signal);
}
