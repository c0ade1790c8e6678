// A panel of judges, each of whom answers in a form that is checked: what a judge says that is not in it is no verdict.
// The judges here are `noop`, which answers with its prompt; have an agent with a model judge by naming it in `args`.
const schema = {
  type: "object",
  properties: { score: { type: "integer", minimum: 1, maximum: 10 }, reason: { type: "string" } },
  required: ["score", "reason"],
  additionalProperties: false,
};
const subject = args?.subject ?? "the name Fanfold";
const judge = args?.judge ?? "noop";
const judges = [
  { view: "a newcomer", verdict: { score: 7, reason: "short, and easy to say" } },
  { view: "an operator", verdict: { score: 8, reason: "found nowhere else in the logs" } },
  { view: "a sceptic", verdict: { score: 11, reason: "beyond the scale, and so no verdict" } },
];

phase("Judge");
const verdicts = await parallel(
  judges.map(({ view, verdict }) => () => {
    const prompt = judge === "noop" ? JSON.stringify(verdict) : `As ${view}, judge ${subject} from 1 to 10.`;
    return agent(prompt, { agent: judge, label: `${view} judges`, schema, max_tokens: 2000 });
  }),
);

const valid = verdicts.filter((verdict) => verdict !== null);
if (valid.length === 0) throw new Error("no judge gave a verdict");
return { subject, verdicts: valid, mean: valid.reduce((sum, { score }) => sum + score, 0) / valid.length };
