import { expect, it } from "vitest";
import { ApiError } from "./http";
import { type Feed, worstStatus } from "./refreshStatus";

const feed = (values: Partial<Feed>): Feed => ({ receivedAt: 1000, error: null, refreshMs: 2000, refresh: () => {}, ...values });

it("reports the most overdue feed", () => {
  const slow = feed({ receivedAt: 500, refreshMs: 30_000 });
  expect(worstStatus([feed({}), slow])).toEqual({ receivedAt: 1000, refreshMs: 2000, error: null });
});

it("reports any error", () => {
  const error = new ApiError("Gone", "", 503);
  expect(worstStatus([feed({}), feed({ error })]).error).toBe(error);
});

it("has no time before the first response", () => {
  expect(worstStatus([feed({ receivedAt: null })]).receivedAt).toBeNull();
  expect(worstStatus([])).toEqual({ receivedAt: null, refreshMs: 0, error: null });
});
