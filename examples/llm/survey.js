// A fan-out: questions about the files of the workspace, asked at once. One that cannot be answered is null, and touches
// no other; why, the result says.
const questions = args?.questions ?? [
  "What is this project for, in one sentence?",
  "Which command runs its tests?",
  "What has changed last?",
];
const schema = {
  type: "object",
  properties: { answer: { type: "string" }, files: { type: "array", items: { type: "string" }, maxItems: 8 } },
  required: ["answer", "files"],
  additionalProperties: false,
};

phase("Ask");
const answers = await parallel(
  questions.map((question) => async () => {
    const found = await agent(question, { agent: "researcher", label: question, schema, max_tokens: 50000 });
    return found && { question, ...found };
  }),
);
return answers.filter((answer) => answer !== null);
