import { describe, expect, it } from "vitest";
import type { HistoryColumns } from "./apiTypes";
import { at, history } from "./fixtures";
import { makeHistoryLoader, toHistory } from "./history";

interface Values {
  start?: number;
  enqueued: number[];
  complete: boolean[];
  watermark?: string | null;
  generation?: number;
  /** Start and end of the range. */
  period: [number, number];
}

function columns({ start = 0, enqueued, complete, watermark = at(10), generation = 0, period }: Values): HistoryColumns {
  const { timeseries: _, ...rest } = history([], watermark);
  const document = {
    ...rest,
    generation,
    period: { start: at(period[0]), end: at(period[1]) },
    columns: { start: at(start), step_s: 5, count: enqueued.length, complete, throughput: { enqueued } },
  };
  return document as unknown as HistoryColumns;
}

const FIRST = columns({ enqueued: [1, 2, 3], complete: [true, true, false], period: [0, 15] });

describe("columns", () => {
  it("become points, with null for fields that were not requested", () => {
    const { timeseries } = toHistory(FIRST);
    expect(timeseries.map((point) => point.timestamp)).toEqual(["2026-11-15T20:00:00Z", "2026-11-15T20:00:05Z", "2026-11-15T20:00:10Z"]);
    expect(timeseries.map((point) => point.throughput.enqueued)).toEqual([1, 2, 3]);
    expect(timeseries.map((point) => point.complete)).toEqual([true, true, false]);
    expect(timeseries[0]?.queue_depth.last).toBeNull();
    expect(timeseries[0]?.percentiles.wait_ms.p95).toBeNull();
  });
});

describe("a loader", () => {
  const load = async (documents: HistoryColumns[], keys = ["a", "a"], times = [0, 0]) => {
    const asked: string[] = [];
    const clock = [...times];
    const loader = makeHistoryLoader(() => clock[0] ?? 0);
    let shown = null;
    for (const key of keys) {
      shown = await loader(key, (more) => {
        asked.push(more);
        return Promise.resolve(documents.shift() as HistoryColumns);
      });
      clock.shift();
    }
    return { asked, values: shown?.timeseries.map((point) => point.throughput.enqueued) };
  };
  const since = `&since=${encodeURIComponent(at(10))}`;
  const tail = { start: 10, enqueued: [4, 5], complete: [true, false], watermark: at(15), period: [5, 20] as [number, number] };

  it("asks only for points after the watermark, and drops those before the range", async () => {
    const { asked, values } = await load([FIRST, columns(tail)]);
    expect(asked).toEqual(["", since]);
    expect(values).toEqual([2, 4, 5]);
  });

  it("loads everything again after a backfill", async () => {
    const all = columns({ enqueued: [9, 9, 9], complete: [true, true, true], generation: 1, period: [5, 20] });
    const { asked, values } = await load([FIRST, columns({ ...tail, generation: 1 }), all]);
    expect(asked).toEqual(["", since, ""]);
    expect(values).toEqual([9, 9, 9]);
  });

  it("loads everything of another range", async () => {
    expect((await load([FIRST, FIRST], ["a", "b"])).asked).toEqual(["", ""]);
  });

  it("loads everything if nothing is final, or after a while", async () => {
    const open = columns({ enqueued: [1], complete: [false], watermark: null, period: [0, 5] });
    expect((await load([open, open])).asked).toEqual(["", ""]);
    expect((await load([FIRST, FIRST], ["a", "a"], [0, 300_000])).asked).toEqual(["", ""]);
  });

  it("loads everything if points between the known and the new ones are missing", async () => {
    const { asked } = await load([FIRST, columns({ ...tail, start: 30, period: [20, 40] }), FIRST]);
    expect(asked).toEqual(["", since, ""]);
  });
});
