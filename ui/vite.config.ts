import { defineConfig } from "vitest/config";

// `npm run dev` serves the sources with reload and forwards API requests to a running Headrace.
const api = process.env["HEADRACE_API_URL"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/headrace/api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // every asset is a file with a hash in its name: cacheable forever, and no data: URLs in the CSP
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": api } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
