import { defineConfig } from "vitest/config";

// `npm run dev` serves the sources with reload and passes API calls on to a running Headrace.
const api = process.env["HEADRACE_API_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/headrace/api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // every asset is a file with a hash in its name: cacheable for ever, no data: URLs in a CSP
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": api } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
