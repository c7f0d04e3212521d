// The part of Node that the programs use.
declare const process: {
  argv: string[];
  env: Record<string, string | undefined>;
  pid: number;
  stdin: unknown;
  stdout: { write(text: string): void };
  kill(pid: number, signal: string): void;
  exit(code: number): never;
};

declare module "node:events" {
  export function getEventListeners(target: EventTarget, name: string): unknown[];
}

declare module "node:fs" {
  export function readFileSync(path: string, encoding: "utf8"): string;
}

declare module "node:readline" {
  export function createInterface(options: { input: unknown }): { on(name: "line", act: (line: string) => void): void };
}
