import { expect, it } from "vitest";
import { readable } from "./payload";

const payload = { bytes: 9, encoding: "text", preview: '{"a":[1]}', cut: false } as const;

it("lays JSON out, and leaves everything else as it is", () => {
  expect(readable(payload)).toBe('{\n  "a": [\n    1\n  ]\n}');
  expect(readable({ ...payload, preview: "<b>" })).toBe("<b>");
  expect(readable({ ...payload, cut: true })).toBe('{"a":[1]}');
  expect(readable({ ...payload, encoding: "base64", preview: "MTIz" })).toBe("MTIz");
});
