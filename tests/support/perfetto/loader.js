// Runs Perfetto's own loader in Node as its web page runs it in a worker: requests in, replies out, each a line in base64.
// Usage: node loader.js ENGINE_BUNDLE REQUESTS
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const [engine, requests] = process.argv.slice(2);
const beside = (name) => fs.readFileSync(path.join(path.dirname(engine), path.basename(name)));
const fail = (error) => { process.stderr.write(String(error.stack || error)); process.exit(1); };

// What a browser's worker has; no `process`, by which the bundle would know Node and refuse to run.
const worker = {
  WorkerGlobalScope: class {}, location: { href: engine }, console: { log() {}, warn() {}, error() {} },
  TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, crypto,
};
worker.self = vm.createContext(worker);
const Bytes = vm.runInContext("Uint8Array", worker);
worker.XMLHttpRequest = class {
  open(method, name) { this.name = name; }
  send() { this.response = new Bytes(beside(this.name)).buffer; }
};
vm.runInContext(fs.readFileSync(engine, "utf8"), worker);

const port = { postMessage: (reply) => process.stdout.write(Buffer.from(reply).toString("base64") + "\n") };
worker.onmessage({ data: port });
setTimeout(() => {
  try { port.onmessage({ data: new Bytes(fs.readFileSync(requests)) }); } catch (error) { fail(error); }
}, 0);
