// A websocket that comes back by itself. It tells `hear` every message, and `tell` whether it is connected.

const FIRST = 500;
const LONGEST = 10000;

export function live(path, hear, tell) {
  let wait = FIRST;
  function connect() {
    const socket = new WebSocket(new URL(path, location.href.replace(/^http/, "ws")));
    socket.addEventListener("open", () => {
      wait = FIRST;
      tell(true);
    });
    socket.addEventListener("message", (event) => hear(JSON.parse(event.data)));
    socket.addEventListener("close", () => {
      tell(false);
      setTimeout(connect, wait * (0.5 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST);
    });
  }
  connect();
}

/** What a path of this server has, as JSON; throws its sentence if it has none. */
export async function got(path) {
  const reply = await fetch(path);
  const isJson = (reply.headers.get("Content-Type") || "").startsWith("application/json"); // also of a run that is not there yet
  if (!reply.ok && !isJson) throw new Error((await reply.text()).trim() || `the observer answers ${reply.status}`);
  return reply.json();
}
