// A front-end: it connects, joins rooms at each connection, and writes its events as lines of JSON.
// Its argument is a JSON object of options; each line of standard input is an event to send.
import { createInterface } from "node:readline";
import { io } from "socket.io-client";

const { url, token, rooms, transports, origin } = JSON.parse(process.argv[2]);
const write = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const socket = io(url, {
  auth: { token },
  transports,
  extraHeaders: { Origin: origin ?? url }, // as a browser sends it
  reconnectionDelay: 500,
  reconnectionDelayMax: 500,
});

socket.on("connect", () => {
  write({ event: "connect", transport: socket.io.engine.transport.name });
  for (const room_id of rooms) {
    socket.emit("join_room", { room_id }, (answer) => write({ event: "joined", room_id, answer }));
  }
});
socket.on("disconnect", (reason) => write({ event: "disconnect", reason }));
socket.on("connect_error", (error) => write({ event: "connect_error", message: error.message, data: error.data }));
socket.onAny((event, data) => write({ event, data }));

const commands = createInterface({ input: process.stdin });
commands.on("line", (line) => {
  const { do: event, ...data } = JSON.parse(line);
  socket.emit(event, data, (answer) => write({ answer }));
});
commands.on("close", () => socket.disconnect());
