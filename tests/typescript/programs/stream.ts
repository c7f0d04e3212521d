// Follows a task, and prints the number and the kind of each event.
import { getEventListeners } from "node:events";
import { Queue } from "zndraw-joblib";

const [url, token, id] = process.argv.slice(2) as [string, string, string];
const queue = new Queue({ url, token });
const { signal } = new AbortController();
for await (const sent of queue.follow(id, { signal })) {
  switch (sent.event) {
    case "log":
      process.stdout.write(`log ${sent.data.data.lines.map((line) => line.text).join(" ")}\n`);
      break;
    default:
      process.stdout.write(`${sent.event}\n`);
  }
}
process.stdout.write(`listeners ${getEventListeners(signal, "abort").length}\n`);
