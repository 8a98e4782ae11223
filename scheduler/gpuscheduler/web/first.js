// The first reading of the fleet. It begins before the other files of the page are there, because a large fleet takes
// the server a while.
import { read } from "./live.js";

let reading = read("fleet");
// If it fails before it is needed, who needs it says so.
reading.catch(() => {});

/** The text of /fleet, the first time as it was read at the start. */
export function readFleetText() {
  const text = reading ?? read("fleet");
  reading = null;
  return text;
}
