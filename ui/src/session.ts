/** Session of the viewer: load it, sign in with a key, sign out. The key itself is not stored. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { getCurrentKey } from "./api";
import type { CurrentKey } from "./apiTypes";
import { request } from "./http";

export type Session = { state: "unknown" } | { state: "signed-out" } | { state: "signed-in"; currentKey: CurrentKey | null };

/** Load the session before anything else, so that a signed-out page sends no requests that would be refused. */
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

/** Load the session state. If that fails the page loads anyway, and its own requests report the failure. */
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

/** Return true if the key is not limited to an organisation. Only such keys see incidents of Headrace itself. */
export function hasFullScope(key: CurrentKey | null): boolean {
  return key !== null && key.scope.org === null && key.scope.project === null && key.scope.env === null;
}

export async function signIn(key: string): Promise<void> {
  await request("POST", "/api/v1/session", new AbortController().signal, { key: key.trim() });
}

export async function signOut(): Promise<void> {
  await request("DELETE", "/api/v1/session", new AbortController().signal);
}
