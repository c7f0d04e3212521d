// The part of Node that the calls use.
declare const process: { argv: string[] };
