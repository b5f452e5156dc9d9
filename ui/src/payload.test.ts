import { expect, it } from "vitest";
import { formatPayload } from "./payload";

const payload = { bytes: 9, encoding: "text", preview: '{"a":[1]}', cut: false } as const;

it("indents JSON and leaves everything else unchanged", () => {
  expect(formatPayload(payload)).toBe('{\n  "a": [\n    1\n  ]\n}');
  expect(formatPayload({ ...payload, preview: "<b>" })).toBe("<b>");
  expect(formatPayload({ ...payload, cut: true })).toBe('{"a":[1]}');
  expect(formatPayload({ ...payload, encoding: "base64", preview: "MTIz" })).toBe("MTIz");
});
