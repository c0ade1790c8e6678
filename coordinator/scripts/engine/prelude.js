// What a script sees of the world (C23). It runs once in the zygote, before any script, and keeps its own references to
// everything it needs: a script may change every object it can reach. Nothing here is trusted by the host.
//
// It is called with `write`, which takes one frame of JSON text, and gives [deliver, settle]: the first takes a frame of
// the host, the second is called when all that came of it is done.
(function (write) {
  "use strict";

  const evaluate = eval;
  const { apply, construct, getPrototypeOf, ownKeys, defineProperty, deleteProperty } = Reflect;
  const { isArray } = Array;
  const { keys, create, freeze, is, hasOwn } = Object;
  const { parse, stringify } = JSON;
  const { isFinite } = Number;
  const { imul } = Math;
  const NativePromise = Promise;
  const NativeDate = Date;
  const NativeError = Error;
  const NativeTypeError = TypeError;
  const captureStack = Error.captureStackTrace;
  const objectPrototype = Object.prototype;
  const arrayPrototype = Array.prototype;

  const unbound = (method) => (self, ...args) => apply(method, self, args);
  const slice = unbound(String.prototype.slice);
  const indexOf = unbound(String.prototype.indexOf);
  const lastIndexOf = unbound(String.prototype.lastIndexOf);
  const isWellFormed = unbound(String.prototype.isWellFormed);
  const toWellFormed = unbound(String.prototype.toWellFormed);
  const dateToString = unbound(Date.prototype.toString);
  const all = (promises) => apply(NativePromise.all, NativePromise, [promises]);

  // A script's lines are told from the prelude's, which are fewer, by their numbers.
  const BASE = 1000;
  const HEADER = "\n".repeat(BASE - 1);

  const MAX_TEXT = 4 * 1024 * 1024;
  const MAX_DEPTH = 200;
  const MAX_DESCRIPTION = 2000;

  let now = 0;
  let spent = 0;
  let isRunning = false;
  let deliveries = 0;
  let calls = 0;
  let main;

  // ---- pending answers and errors that end the run; without prototypes, so that no script can get in between
  const pending = create(null);
  let outstanding = 0;
  const fatalErrors = new WeakSet();
  const isFatal = unbound(WeakSet.prototype.has).bind(null, fatalErrors);
  const markFatal = unbound(WeakSet.prototype.add).bind(null, fatalErrors);

  function tell(frame) {
    if (isRunning) write(stringify(frame));
  }

  /** The run ends as `error`: the host sees to that, whatever the script does with what is thrown here. */
  function fatal(message, line) {
    const error = new NativeTypeError(message);
    markFatal(error);
    tell({ __proto__: null, t: "fatal", message: short(message), line: line ?? lineOf(error) });
    throw error;
  }

  function short(text) {
    text = toWellFormed(text);
    return text.length > MAX_DESCRIPTION ? slice(text, 0, MAX_DESCRIPTION) + "..." : slice(text, 0);
  }

  /** The script's line that an error's stack names first; 0 if it names none. */
  function lineOf(error) {
    let stack;
    try {
      stack = error.stack;
    } catch {
      return 0;
    }
    return placeIn(stack)[0];
  }

  function placeIn(stack) {
    if (typeof stack !== "string") return [0, 0];
    for (let at = indexOf(stack, "<input>:"); at >= 0; at = indexOf(stack, "<input>:", at + 1)) {
      let line = 0;
      let column = 0;
      let i = at + 8;
      for (; stack[i] >= "0" && stack[i] <= "9"; i++) line = line * 10 + +stack[i];
      if (stack[i] === ":") for (i++; stack[i] >= "0" && stack[i] <= "9"; i++) column = column * 10 + +stack[i];
      if (line > BASE) return [line - BASE, column];
    }
    return [0, 0];
  }

  function lineOfCaller(callee) {
    const here = create(null);
    captureStack(here, callee);
    return lineOf(here);
  }

  function describe(error) {
    try {
      if (typeof error === "object" && error !== null && "message" in error) {
        const name = error.name;
        return short(`${typeof name === "string" ? name : "Error"}: ${error.message}`);
      }
      if (typeof error === "string") return short(error);
      return typeof error === "number" ? `${error}` : kindOf(error);
    } catch {
      return "something that cannot be described";
    }
  }

  function kindOf(value) {
    if (value === null) return "null";
    if (isArray(value)) return "an array";
    switch (typeof value) {
      case "undefined":
        return "undefined";
      case "object":
        return value instanceof NativePromise ? "a promise" : "an object";
      case "function":
        return "a function";
      case "bigint":
        return "a BigInt";
      default:
        return `a ${typeof value}`;
    }
  }

  // ---- lossless JSON: each value is read once, and what JSON cannot say is refused with its path
  class Lossy {
    constructor(path, why) {
      this.path = path;
      this.why = why;
    }
    toString() {
      let text = "";
      for (let at = this.path; at.up; at = at.up) text = (typeof at.key === "number" ? `[${at.key}]` : `.${at.key}`) + text;
      let top = this.path;
      while (top.up) top = top.up;
      return top.key + text + " " + this.why;
    }
  }
  freeze(Lossy.prototype);

  /** With `isOptional` properties that are undefined become null, as options that are undefined are not given. */
  function encode(value, name, isOptional) {
    let size = 0;
    const within = (text, path) => {
      size += text.length;
      if (size > MAX_TEXT) throw new Lossy(path, `is larger than ${MAX_TEXT} characters as JSON`);
      return text;
    };

    function encodeText(text, path) {
      if (text.length > MAX_TEXT) within(text, path);
      if (!isWellFormed(text)) throw new Lossy(path, "has a lone surrogate, which is no Unicode text");
      return within(stringify(text), path);
    }

    function encodeObject(object, path, depth, above) {
      if (depth > MAX_DEPTH) throw new Lossy(path, `nests deeper than ${MAX_DEPTH} levels`);
      for (let at = above; at; at = at.above) if (at.object === object) throw new Lossy(path, "contains itself");
      const chain = { __proto__: null, object, above };
      const prototype = getPrototypeOf(object);
      if (isArray(object)) {
        if (prototype !== arrayPrototype) throw new Lossy(path, "is an instance of a class, which JSON has not");
        const length = object.length;
        let text = "[";
        for (let i = 0; i < length; i++) {
          if (i) text += within(",", path);
          text += any(object[i], { __proto__: null, up: path, key: i }, depth + 1, chain);
        }
        return text + within("]", path);
      }
      if (prototype !== objectPrototype && prototype !== null) throw new Lossy(path, instanceWords(object));
      const names = ownKeys(object);
      let text = "{";
      for (let i = 0; i < names.length; i++) {
        const key = names[i];
        if (typeof key === "symbol") throw new Lossy(path, "has a symbol as a key, which JSON has not");
        const below = { __proto__: null, up: path, key };
        let item = object[key];
        if (item === undefined && isOptional && depth === 1) item = null;
        text += (i ? "," : "") + encodeText(key, below) + ":" + any(item, below, depth + 1, chain);
      }
      return text + within("}", path);
    }

    function any(item, path, depth, above) {
      switch (typeof item) {
        case "string":
          return encodeText(item, path);
        case "boolean":
          return within(item ? "true" : "false", path);
        case "number":
          if (!isFinite(item)) throw new Lossy(path, `is ${item}, which JSON has not`);
          return within(is(item, -0) ? "-0.0" : stringify(item), path);
        case "object":
          return item === null ? within("null", path) : encodeObject(item, path, depth, above);
        default:
          throw new Lossy(path, `is ${kindOf(item)}, which JSON has not`);
      }
    }

    return slice(any(value, { __proto__: null, up: null, key: name }, 1, null) + " ", 0, -1);
  }

  function instanceWords(object) {
    if (object instanceof NativePromise) return "is a promise; await it first";
    let name = "a class";
    try {
      const constructor = object.constructor;
      if (typeof constructor === "function" && typeof constructor.name === "string") name = constructor.name;
    } catch {}
    return `is an instance of ${short(name)}, which JSON has not`;
  }

  function encodeOrFatal(value, name, line, isOptional) {
    try {
      return encode(value, name, isOptional);
    } catch (error) {
      return fatal(error instanceof Lossy ? apply(Lossy.prototype.toString, error, []) : `${name} cannot be read: ${describe(error)}`, line);
    }
  }

  // ---- the globals
  function agent(prompt, options) {
    const line = lineOfCaller(agent);
    if (typeof prompt !== "string") fatal(`agent(): the prompt must be text, not ${kindOf(prompt)}`, line);
    if (prompt.length > MAX_TEXT) fatal(`agent(): the prompt must be at most ${MAX_TEXT} characters`, line);
    if (options !== undefined && (typeof options !== "object" || options === null || isArray(options))) {
      fatal(`agent(): the options must be an object, not ${kindOf(options)}`, line);
    }
    if (options instanceof NativePromise) fatal("agent(): the options are a promise; await it first", line);
    const given = options === undefined ? "{}" : encodeOrFatal(options, "options", line, true);
    const id = ++calls;
    if (isRunning) {
      const text = stringify(toWellFormed(prompt));
      write(slice(`{"t":"call","id":${id},"line":${line},"prompt":${text},"options":${given}} `, 0, -1));
    }
    outstanding++;
    return new NativePromise((resolve) => {
      pending[id] = { __proto__: null, resolve, hasSchema: wantsValue(given) };
    });
  }

  /** Whether a call has asked for a value that fits a schema, and not for text. */
  function wantsValue(options) {
    const asked = parse(options);
    return hasOwn(asked, "schema") && asked.schema !== null;
  }

  function requireFunctions(list, what, line) {
    for (let i = 0; i < list.length; i++) {
      const item = list[i];
      if (typeof item !== "function") {
        const hint = item instanceof NativePromise ? "; it has begun already: write () => agent(...)" : "";
        fatal(`${what}[${i}] must be a function, not ${kindOf(item)}${hint}`, line);
      }
    }
  }

  /** The list as it now is, and how many it has: a script must not change them under us. */
  function snapshot(list, what, line) {
    if (!isArray(list)) fatal(`${what} must be an array, not ${kindOf(list)}`, line);
    tell({ __proto__: null, t: "items", count: list.length, line });
    const items = [];
    for (let i = 0; i < list.length; i++) defineProperty(items, i, { __proto__: null, value: list[i], writable: true, enumerable: true, configurable: true });
    return items;
  }

  function lost(where, item, stage, error) {
    tell({ __proto__: null, t: "lost", where, item, stage, error: describe(error), line: lineOf(error ?? create(null)) });
  }

  function parallel(thunks) {
    const line = lineOfCaller(parallel);
    const list = snapshot(thunks, "parallel(): thunks", line);
    requireFunctions(list, "parallel(): thunks", line);
    const run = async (thunk, item) => {
      try {
        return (await thunk()) ?? null;
      } catch (error) {
        if (typeof error === "object" && error !== null && isFatal(error)) throw error;
        lost("parallel", item, 0, error);
        return null;
      }
    };
    const running = [];
    for (let i = 0; i < list.length; i++) running[i] = run(list[i], i);
    return all(running);
  }

  function pipeline(items, ...stages) {
    const line = lineOfCaller(pipeline);
    const list = snapshot(items, "pipeline(): items", line);
    if (stages.length === 0) fatal("pipeline(): needs at least one stage", line);
    requireFunctions(stages, "pipeline(): stages", line);
    const run = async (item, index) => {
      let previous = item;
      for (let stage = 0; stage < stages.length; stage++) {
        const step = stages[stage];
        try {
          previous = (await step(previous, item, index)) ?? null;
        } catch (error) {
          if (typeof error === "object" && error !== null && isFatal(error)) throw error;
          lost("pipeline", index, stage, error);
          return null;
        }
        if (previous === null) return null;
      }
      return previous;
    };
    const running = [];
    for (let i = 0; i < list.length; i++) running[i] = run(list[i], i);
    return all(running);
  }

  function phase(title) {
    if (typeof title !== "string" || title === "") fatal(`phase(): the title must be text, not ${title === "" ? "empty" : kindOf(title)}`, lineOfCaller(phase));
    tell({ __proto__: null, t: "phase", title: short(title) });
  }

  function log(...parts) {
    let text = "";
    for (let i = 0; i < parts.length && text.length < 8192; i++) text += (i ? " " : "") + shown(parts[i]);
    tell({ __proto__: null, t: "log", message: toWellFormed(text) });
  }

  function shown(value) {
    if (typeof value === "string") return value.length > 8192 ? slice(value, 0, 8192) : value;
    if (typeof value === "object" && value !== null) {
      if (value instanceof NativeError) return describe(value);
      try {
        const text = encode(value, "");
        return text.length > 8192 ? slice(text, 0, 8192) : text;
      } catch {
        return described(value);
      }
    }
    return typeof value === "symbol" || value === undefined ? kindOf(value) : described(value);
  }

  /** What the value says of itself; a script's own code may be asked for that. */
  function described(value) {
    try {
      const text = `${value}`;
      return text.length > 8192 ? slice(text, 0, 8192) : text;
    } catch {
      return `(${kindOf(value)})`;
    }
  }

  function structuredClone(value) {
    try {
      return parse(encode(value, "value"));
    } catch (error) {
      if (error instanceof Lossy) throw new NativeTypeError(`structuredClone(): ${apply(Lossy.prototype.toString, error, [])}`);
      throw error;
    }
  }

  // ---- time and chance, which repeat exactly
  function ScriptDate(...args) {
    if (new.target === undefined) return dateToString(new NativeDate(now));
    return construct(NativeDate, args.length === 0 ? [now] : args, new.target === ScriptDate ? NativeDate : new.target);
  }
  defineProperty(ScriptDate, "name", { __proto__: null, value: "Date", configurable: true });
  defineProperty(ScriptDate, "length", { __proto__: null, value: 7, configurable: true });
  defineProperty(ScriptDate, "prototype", { __proto__: null, value: NativeDate.prototype, writable: false });
  defineProperty(NativeDate.prototype, "constructor", { __proto__: null, value: ScriptDate, writable: true, configurable: true });
  hidden(ScriptDate, "now", function () { return now; });
  hidden(ScriptDate, "parse", NativeDate.parse);
  hidden(ScriptDate, "UTC", NativeDate.UTC);

  const chance = [0, 0, 0, 0];
  function seed(numbers) {
    for (let i = 0; i < 4; i++) chance[i] = numbers[i] | 0;
    for (let i = 0; i < 12; i++) random32();
  }
  /** sfc32 */
  function random32() {
    const t = (((chance[0] + chance[1]) | 0) + chance[3]) | 0;
    chance[3] = (chance[3] + 1) | 0;
    chance[0] = chance[1] ^ (chance[1] >>> 9);
    chance[1] = (chance[2] + (chance[2] << 3)) | 0;
    chance[2] = ((chance[2] << 21) | (chance[2] >>> 11)) + t | 0;
    return t >>> 0;
  }
  hidden(Math, "random", function () { return ((random32() >>> 5) * 67108864 + (random32() >>> 6)) / 9007199254740992; });

  function hidden(target, name, value) {
    defineProperty(target, name, { __proto__: null, value, writable: true, enumerable: false, configurable: true });
  }

  function fixed(name, value) {
    defineProperty(globalThis, name, { __proto__: null, value, writable: false, enumerable: false, configurable: false });
  }

  for (const name of ["performance", "Atomics", "SharedArrayBuffer", "WeakRef", "FinalizationRegistry"]) {
    deleteProperty(globalThis, name);
  }
  hidden(globalThis, "Date", ScriptDate);
  // With it a script could see the frames of this function, and what they hold.
  defineProperty(Error, "prepareStackTrace", { __proto__: null, value: undefined, writable: false, configurable: false });
  defineProperty(Error, "stackTraceLimit", { __proto__: null, value: 10, writable: false, configurable: false });
  for (const global of [agent, parallel, pipeline, phase, log, structuredClone]) fixed(global.name, freeze(global));
  fixed("console", freeze({ log, info: log, warn: log, error: log, debug: log }));

  // ---- the life of a script
  /** Both forms have to be right, or the text leaves the function that it is meant to be the body of. */
  function compile(source) {
    const body = `async function script() {"use strict";${HEADER}\n${source}\n}`;
    evaluate(`{${body}}`);
    const compiled = evaluate(`(${body})`);
    if (typeof compiled !== "function") throw new SyntaxErrorHere("the text ends the function that it is the body of");
    return compiled;
  }
  const SyntaxErrorHere = SyntaxError;

  function load(frame) {
    try {
      main = compile(frame.script);
    } catch (error) {
      const [line, column] = placeIn(error.stack);
      write(stringify({ __proto__: null, t: "done", kind: "syntax", error: describe(error), line, column }));
      return;
    }
    seed(frame.seed);
    const total = frame.budget;
    fixed("args", frame.args);
    fixed("budget", freeze({
      total,
      spent: () => spent,
      remaining: () => (total === null ? Infinity : total > spent ? total - spent : 0),
    }));
    write('{"t":"loaded"}');
  }

  async function run() {
    let value;
    isRunning = true;
    try {
      value = await apply(main, undefined, []);
    } catch (error) {
      tell({ __proto__: null, t: "done", kind: "throw", error: describe(error), line: lineOf(error ?? create(null)) });
      isRunning = false;
      return;
    }
    let text;
    try {
      text = value === undefined ? "null" : encode(value, "value");
    } catch (error) {
      const why = error instanceof Lossy ? apply(Lossy.prototype.toString, error, []) : `value cannot be read: ${describe(error)}`;
      tell({ __proto__: null, t: "done", kind: "value", error: short(why), line: 0 });
      isRunning = false;
      return;
    }
    if (isRunning) write(slice(`{"t":"done","kind":"value_ok","value":${text}} `, 0, -1));
    isRunning = false;
  }

  function answer(frame) {
    const call = pending[frame.id];
    if (call === undefined) return;
    delete pending[frame.id];
    outstanding--;
    call.resolve(frame.t === "either" && call.hasSchema ? frame.structured : frame.value);
  }

  function deliver(text) {
    const frame = parse(text);
    deliveries++;
    now = frame.now;
    spent = frame.spent;
    if (frame.t === "answer" || frame.t === "either") answer(frame);
    else if (frame.t === "load") load(frame);
    else if (frame.t === "run") run();
  }

  function settle() {
    if (!isRunning) return;
    if (outstanding === 0) {
      tell({ __proto__: null, t: "done", kind: "stalled", error: "the script waits for a promise that nobody settles", line: 0 });
      isRunning = false;
      return;
    }
    tell({ __proto__: null, t: "idle", delivered: deliveries });
  }

  return [deliver, settle];
})
