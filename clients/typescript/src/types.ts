/** The types of the REST API, of Socket.IO events and of event streams, generated from the server. */
export type * from "./rest.js";
export type {
  ClientToServerEvents,
  GroupResult,
  GroupStream,
  RoomStream,
  SentEvent,
  ServerToClientEvents,
  StreamData,
  TaskProgress,
  TaskStream,
  TaskStreamEvent,
} from "./events.js";
