import { expect, it } from "vitest";
import { ApiError } from "./http";
import { worstStatus, type Feed } from "./refreshStatus";

const feed = (values: Partial<Feed>): Feed => ({ receivedAt: 1000, error: null, refreshMs: 2000, refresh: () => {}, ...values });

it("is as fresh as the feed that is furthest behind its own pace", () => {
  const slow = feed({ receivedAt: 500, refreshMs: 30_000 });
  expect(worstStatus([feed({}), slow])).toEqual({ receivedAt: 1000, refreshMs: 2000, error: null });
});

it("tells of any failure", () => {
  const error = new ApiError("Gone", "", 503);
  expect(worstStatus([feed({}), feed({ error })]).error).toBe(error);
});

it("has nothing to say before the first answer", () => {
  expect(worstStatus([feed({ receivedAt: null })]).receivedAt).toBeNull();
  expect(worstStatus([])).toEqual({ receivedAt: null, refreshMs: 0, error: null });
});
