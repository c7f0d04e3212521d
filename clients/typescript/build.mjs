// Put into the package what the compiler does not: the generated types of the server, and the licence.
import { copyFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const target = process.argv[2] ?? here(".");
for (const name of ["rest.d.ts", "events.d.ts"]) {
  copyFileSync(here(`../../src/zndraw_joblib/server/types/${name}`), `${target}/dist/${name}`);
}
copyFileSync(here("../../LICENSE"), `${target}/LICENSE`);
