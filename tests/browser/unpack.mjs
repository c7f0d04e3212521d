// Unpacks the browser of `@sparticuz/chromium`, its libraries and fonts, into a folder beside its package.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { brotliDecompressSync } from "node:zlib";

const packed = new URL("node_modules/@sparticuz/chromium/bin/", import.meta.url);
const unpacked = new URL("node_modules/.chromium/", import.meta.url);
const folder = fileURLToPath(unpacked);
const read = (name) => brotliDecompressSync(readFileSync(new URL(name, packed)));

rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
for (const name of ["al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br"]) {
  execFileSync("tar", ["-x"], { cwd: folder, input: read(name) });
}
const fonts = `<fontconfig><dir>${folder}fonts</dir><cachedir>${folder}fonts-cache</cachedir></fontconfig>\n`;
writeFileSync(new URL("fonts.conf", unpacked), fonts);
writeFileSync(new URL("chromium", unpacked), read("chromium.br"), { mode: 0o755 });
