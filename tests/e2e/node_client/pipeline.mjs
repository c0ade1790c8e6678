// Runs a pipeline with nothing but the protos and grpc-js: node pipeline.mjs HOST:PORT PROTOS
// Prints one JSON document: each item's last outcome, the stages that failed, and how the run ended.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [server, protos] = process.argv.slice(2);
const definition = loader.loadSync("fanfold/v1/coordinator.proto", {
  includeDirs: [protos],
  keepCase: true,
  enums: String,
  longs: String,
  defaults: true,
  oneofs: true,
});
const { Coordinator } = grpc.loadPackageDefinition(definition).fanfold.v1;
const client = new Coordinator(server, grpc.credentials.createInsecure());

const items = ["alpha", { name: "beta" }, "stop", "trouble"];
const stages = [
  (item) => ({ task_id: "survey", agent: "noop", description: "survey", prompt: `about ${item.name ?? item}` }),
  (item, previous) => {
    if (item === "stop") return null;
    if (item === "trouble") throw new Error("no review for trouble");
    return { task_id: "review", agent: "noop", description: "review", prompt: `review of ${previous.output}` };
  },
];
const outcomes = new Array(items.length).fill(null);
const failures = [];
let run = null;

function answer({ id, index, stage, previous }) {
  try {
    const step = stages[stage](items[index], previous);
    return step === null ? { id, end: {} } : { id, step };
  } catch (error) {
    return { id, error: error.message };
  }
}

const call = client.RunPipeline();
call.on("data", (response) => {
  for (const event of response.events) {
    if (event.event === "step" && event.step.event.event === "ended") {
      outcomes[event.step.index] = event.step.event.ended.outcome;
    } else if (event.event === "stage_failed") {
      failures.push(event.stage_failed);
    } else if (event.event === "ended") {
      run = event.ended.run;
      call.end();
    }
  }
  if (response.requests.length > 0) call.write({ answers: { answers: response.requests.map(answer) } });
});
call.on("error", (error) => {
  console.error(`${error.code}: ${error.details}`);
  process.exit(1);
});
call.on("end", () => {
  console.log(JSON.stringify({ outcomes, failures, run }));
  client.close();
});
call.write({ open: { stages: stages.length } });
call.write({ items: { items_json: items.slice(0, 2).map((item) => JSON.stringify(item)) } });
call.write({ items: { items_json: items.slice(2).map((item) => JSON.stringify(item)), last: true } });
