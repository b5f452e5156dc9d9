/** Redrive many dead jobs in batches, so that progress can be shown and the redrive can be stopped. */
import { redriveBatch } from "./api";
import type { DeadFilter, QueueRef, Redriven } from "./apiTypes";

type Step = (ref: QueueRef, which: DeadFilter, cursor: string | null, signal: AbortSignal) => Promise<Redriven>;

export async function redriveAll(
  ref: QueueRef,
  which: DeadFilter,
  signal: AbortSignal,
  progress: (done: number) => void,
  step: Step = redriveBatch,
): Promise<void> {
  let cursor: string | null = null;
  let done = 0;
  do {
    const { redriven, next }: Redriven = await step(ref, which, cursor, signal);
    done += redriven;
    cursor = next;
    progress(done);
  } while (cursor !== null && !signal.aborted);
}
