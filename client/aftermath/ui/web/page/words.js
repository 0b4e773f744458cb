// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat("en");

/** A whole number with its thousands apart, or a dash for what is not known. */
export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(Math.round(value));
}

/** A number and its noun. */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A time that passes, in the words of the commands. */
export function span(seconds) {
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(seconds / 3600);
  if (hours < 5) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return hours < 48 ? `${hours} h` : `${Math.round(seconds / 86400)} days`;
}

/** A number of bytes. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A large number in few characters. */
export function brief(value) {
  if (value === null || value === undefined) return "–";
  const units = ["", " k", " M", " G", " T"];
  let unit = 0;
  while (Math.abs(value) >= 9999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : count(value)}${units[unit]}`;
}

/** Lamports as SOL. */
export function sol(lamports) {
  const text = (lamports / 1e9).toFixed(6).replace(/0+$/, "").replace(/\.$/, "");
  return `${text} SOL`;
}

/** Enough of a wallet's key to tell members apart. */
export function short(wallet) {
  return wallet.length > 12 ? `${wallet.slice(0, 5)}…${wallet.slice(-4)}` : wallet;
}

/** A moment's date and time where the viewer is. */
export function date(milliseconds) {
  const found = new Date(milliseconds);
  return Number.isNaN(found.getTime()) ? "–" : found.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}
