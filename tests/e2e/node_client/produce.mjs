// Produces a job with nothing but the protos and grpc-js: node produce.mjs HOST:PORT PROTOS
// Registers it, writes output until it is asked to stop, and settles it, on a second stream, for the first one breaks in
// the middle. Prints what it was told as one JSON document.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [server, protos] = process.argv.slice(2);
const definition = loader.loadSync("fanfold/v1/job_registry.proto", {
  includeDirs: [protos],
  keepCase: true,
  enums: String,
  longs: Number,
  defaults: true,
  oneofs: true,
});
const { JobRegistry } = grpc.loadPackageDefinition(definition).fanfold.v1;
const registry = new JobRegistry(server, grpc.credentials.createInsecure());

class Stream {
  constructor() {
    this.call = registry.ProduceJob();
    this.told = [];
    this.waiting = null;
    this.call.on("data", (message) => {
      this.told.push(message);
      this.waiting?.();
    });
    this.call.on("error", () => {});
    this.call.on("end", () => {});
  }

  say(word) {
    this.call.write(word);
  }

  async hear(kind) {
    for (;;) {
      const message = this.told.shift();
      if (message?.message === kind) return message[kind];
      if (message === undefined) await new Promise((resolve) => { this.waiting = resolve; });
    }
  }
}

const text = Buffer.from("written by node: жж\n");
const first = new Stream();
first.say({ open: { spec: { kind: "node-work", label: "from the protos", sources: ["log"] }, request_id: "one" } });
const { job_id } = await first.hear("admitted");
first.say({ started: { epoch: 1, holds: "this very process" } });
const { job } = await first.hear("committed");
await first.hear("credit");
first.say({ output: { chunks: [{ source: "log", offset: 0, data: text }], progress: "half of it" } });
await new Promise((resolve) => { setTimeout(resolve, 300); });
first.call.cancel();

const second = new Stream();
second.say({ reattach: { job_id, epoch: 1 } });
const kept = (await second.hear("committed")).job.sources[0].total_bytes;
second.say({ output: { chunks: [{ source: "log", offset: kept, data: text }] } });
const { reason } = await second.hear("cancel");
second.say({ settled: { state: "JOB_STATE_KILLED", detail: "stopped in order", result: Buffer.from(`{"half": true}`) } });
const settled = (await second.hear("kept")).job;
console.log(JSON.stringify({ job_id, committed: job.state, kept, reason, settled }));
registry.close();
