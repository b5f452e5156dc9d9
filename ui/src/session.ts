/** Who looks at the page: asks the API, signs in with a key, signs out. The key itself is kept nowhere. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { whoAmI } from "./api";
import { request } from "./http";
import type { Who } from "./apiTypes";

export type Session = { state: "unknown" } | { state: "signed-out" } | { state: "signed-in"; who: Who | null };

/** Asked before anything else is, so that a stranger's page sends no requests that would be refused. */
export function useSession(): { session: Session; ask: () => void; end: () => void } {
  const [session, setSession] = useState<Session>({ state: "unknown" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    void find(stop.signal).then((found) => {
      if (!stop.signal.aborted) setSession(found);
    });
    return () => stop.abort();
  }, [round]);
  const ask = useCallback(() => setRound((n) => n + 1), []);
  const end = useCallback(() => setSession({ state: "signed-out" }), []);
  return { session, ask, end };
}

/** Without an answer the page goes on, and tells of the failure where it tells of others. */
async function find(signal: AbortSignal): Promise<Session> {
  try {
    const { signed_in: yes } = (await request("GET", "/api/v1/session/state", signal)) as { signed_in?: unknown };
    return yes === true ? { state: "signed-in", who: await whoAmI(signal) } : { state: "signed-out" };
  } catch {
    return { state: "signed-in", who: null };
  }
}

export function mayOperate(who: Who | null): boolean {
  return who !== null && who.level !== "read";
}

export function mayAdminister(who: Who | null): boolean {
  return who?.level === "admin";
}

/** Incidents of Headrace itself are no tenant's: they are seen by keys that reach everything. */
export function reachesEverything(who: Who | null): boolean {
  return who !== null && who.scope.org === null && who.scope.project === null && who.scope.env === null;
}

export async function signIn(key: string): Promise<void> {
  await request("POST", "/api/v1/session", new AbortController().signal, { key: key.trim() });
}

export async function signOut(): Promise<void> {
  await request("DELETE", "/api/v1/session", new AbortController().signal);
}
