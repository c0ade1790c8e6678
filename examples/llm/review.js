// A pipeline: each file is reviewed, and every fault that was found is put to a judge, without waiting for other files.
const paths = args?.paths ?? ["examples/agents/outline.py", "examples/survey.py"];
const faults = {
  type: "array",
  maxItems: 5,
  items: {
    type: "object",
    properties: { line: { type: "integer", minimum: 1 }, fault: { type: "string" } },
    required: ["line", "fault"],
    additionalProperties: false,
  },
};
const verdict = {
  type: "object",
  properties: { holds: { type: "boolean" }, why: { type: "string" } },
  required: ["holds", "why"],
  additionalProperties: false,
};

const reviewed = await pipeline(
  paths,
  (path) =>
    agent(`Review ${path}.`, { agent: "reviewer", phase: "Review", label: `review ${path}`, schema: faults, max_tokens: 50000 }),
  async (found, path) => {
    const verdicts = await parallel(
      found.map(({ line, fault }) => () =>
        agent(`Does this hold for line ${line} of ${path}? ${fault}`, {
          agent: "judge",
          phase: "Verify",
          label: `verify ${path}:${line}`,
          schema: verdict,
          max_tokens: 20000,
        }),
      ),
    );
    return found.map((each, index) => ({ path, ...each, verdict: verdicts[index] }));
  },
);
const found = reviewed.flatMap((each) => each ?? []);
return {
  confirmed: found.filter(({ verdict }) => verdict?.holds),
  refuted: found.filter(({ verdict }) => verdict?.holds === false),
  unread: paths.filter((_, index) => reviewed[index] === null),
};
