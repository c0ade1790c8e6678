// Research within a budget: a question is divided, as many parts as can be paid for are answered at once, and one text is
// written from what was found. What there was no room for is named as open.
const question = args?.question ?? "How does this project survive the loss of a machine?";
const PART_TOKENS = args?.part_tokens ?? 30000;
const plan = { type: "array", items: { type: "string", minLength: 1 }, minItems: 1, maxItems: 12 };
const finding = {
  type: "object",
  properties: { answer: { type: "string" }, sources: { type: "array", items: { type: "string" } } },
  required: ["answer", "sources"],
  additionalProperties: false,
};

phase("Plan");
const parts = await agent(`Divide this question into parts that can be answered each on its own: ${question}`, {
  agent: "researcher",
  label: "plan",
  schema: plan,
  max_tokens: PART_TOKENS,
});
if (parts === null) throw new Error("there is no plan");

phase("Research");
const rooms = Math.floor(budget.remaining() / PART_TOKENS) - 1; // one is for the report
const asked = parts.slice(0, Math.max(rooms, 0));
if (asked.length < parts.length) log(`${parts.length - asked.length} of ${parts.length} parts cannot be paid for`);
const findings = await parallel(
  asked.map((part) => () => agent(part, { agent: "researcher", label: part, schema: finding, max_tokens: PART_TOKENS })),
);
const known = asked.map((part, index) => ({ part, ...findings[index] })).filter(({ answer }) => answer !== undefined);
const open = parts.filter((part) => !known.some((each) => each.part === part));

phase("Report");
const report = await agent(
  `Answer this question: ${question}\nThe findings:\n${JSON.stringify(known)}\nOpen are:\n${JSON.stringify(open)}`,
  { agent: "editor", label: "report", max_tokens: PART_TOKENS },
);
return { report, known: known.length, open, spent: budget.spent() };
