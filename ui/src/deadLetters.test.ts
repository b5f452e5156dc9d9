import { describe, expect, it } from "vitest";
import { deadFilter, deadQueues, isFiltered, parseDeadView } from "./deadLetters";
import { at, queueState, START, TENANT } from "./fixtures";
import { redriveAll } from "./redrive";

describe("dead letter filters", () => {
  const view = (given: Record<string, string>) => parseDeadView(new URLSearchParams(given));

  it("are read from the URL", () => {
    expect(deadFilter(view({ task: "post", error: "no answer", since: "1h" }), START * 1000)).toEqual({
      task: "post",
      error: "no answer",
      buried_from: at(-3600),
    });
    expect(deadFilter(view({}), 0)).toEqual({});
    expect(isFiltered(view({ queue: "q" }))).toBe(false);
    expect(isFiltered(view({ since: "1h" }))).toBe(true);
    expect(view({ since: "ever" }).since).toBe("");
  });

  it("list queues with the most dead letters first, and always the chosen one", () => {
    const queues = [queueState("few", { dead: 1 }), queueState("many", { dead: 9 }), queueState("none")];
    expect(deadQueues(queues, null).map((each) => each.queue)).toEqual(["many", "few"]);
    expect(deadQueues(queues, "none").map((each) => each.queue)).toEqual(["many", "few", "none"]);
    expect(deadQueues([], "gone")).toEqual([{ queue: "gone", dead: 0 }]);
  });
});

describe("redriving", () => {
  const ref = { ...TENANT, queue: "q" };

  it("continues to the last batch and reports progress", async () => {
    const left = ["a", "b", null];
    const cursors: (string | null)[] = [];
    const progress: number[] = [];
    await redriveAll(ref, {}, new AbortController().signal, (done) => progress.push(done), async (_ref, _which, cursor) => {
      cursors.push(cursor);
      return { redriven: 200, next: left.shift() ?? null };
    });
    expect(cursors).toEqual([null, "a", "b"]);
    expect(progress).toEqual([200, 400, 600]);
  });

  it("stops when aborted", async () => {
    const stop = new AbortController();
    let steps = 0;
    await redriveAll(ref, {}, stop.signal, () => stop.abort(), async () => {
      steps += 1;
      return { redriven: 1, next: "more" };
    });
    expect(steps).toBe(1);
  });
});
