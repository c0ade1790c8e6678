// Runs a fan-out with nothing but the protos and grpc-js: node fan_out.mjs HOST:PORT PROTOS [WORKFLOW_ID REQUEST_ID]
// Prints one JSON document: the outcomes in the order of the steps, and the kinds of events each step told.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [server, protos, workflow_id = "", request_id = ""] = process.argv.slice(2);
const definition = loader.loadSync("fanfold/v1/coordinator.proto", {
  includeDirs: [protos],
  keepCase: true,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { Coordinator } = grpc.loadPackageDefinition(definition).fanfold.v1;
const client = new Coordinator(server, grpc.credentials.createInsecure());

const steps = [
  { task_id: "words", agent: "wordcount", description: "count", prompt: "notes.txt" },
  { task_id: "missing", agent: "read", description: "fails", prompt: "no-such-file.txt" },
  { task_id: "nobody", agent: "noop", description: "echo", prompt: "hello from node" },
];
const outcomes = new Array(steps.length).fill(null);
const events = steps.map(() => []);
const recalled = [];
let run = null;

const call = client.Run();
call.on("data", (response) => {
  for (const event of response.events) {
    if (event.event === "step") {
      const { index, event: step } = event.step;
      if (event.step.recalled && step.event === "ended") recalled.push(step.task_id);
      events[index].push(step.event);
      if (step.event === "ended") outcomes[index] = step.ended.outcome;
    } else if (event.event === "ended") {
      run = event.ended.run;
    }
  }
});
call.on("error", (error) => {
  console.error(`${error.code}: ${error.details}`);
  process.exit(1);
});
call.on("end", () => {
  console.log(JSON.stringify({ outcomes, events, recalled, run }));
  client.close();
});
const parallel = { total_steps: steps.length };
call.write({ open: { events: "EVENT_DETAIL_LIFECYCLE", workflow_id, request_id, parallel } });
call.write({ steps: { steps: steps.slice(0, 2) } });
call.write({ steps: { steps: steps.slice(2) } });
call.end();
