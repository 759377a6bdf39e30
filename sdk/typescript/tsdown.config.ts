import { defineConfig } from "tsdown";

export default defineConfig({
  entry: { index: "src/index.ts", ai: "src/ai.ts", "bash-tool": "src/bash-tool.ts" },
  format: ["esm", "cjs"],
  target: "es2022",
  platform: "neutral", // Node's modules are loaded at run time: see src/node.ts
  dts: true,
  sourcemap: true,
});
