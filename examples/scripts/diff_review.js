// A review of a git diff by three coding agents that do not know of one another, and a judge who keeps what holds.
// Its agents are those of examples/coding-agents; `args` may name a range of commits, and other agents.
const finding = {
  type: "object",
  properties: {
    file: { type: "string" },
    line: { type: "integer", minimum: 1 },
    fault: { type: "string" },
    severity: { enum: ["low", "medium", "high"] },
  },
  required: ["file", "line", "fault", "severity"],
  additionalProperties: false,
};
const schema = {
  type: "object",
  properties: { findings: { type: "array", items: finding, maxItems: 50 } },
  required: ["findings"],
  additionalProperties: false,
};
const range = args?.range ?? "HEAD~1..HEAD";
const reviewers = args?.reviewers ?? ["claude-reviewer", "codex-reviewer", "gemini-reviewer"];
const judge = args?.judge ?? "diff-judge";

phase("Diff");
const diff = await agent(range, { agent: "git-diff", label: `diff of ${range}` });
if (diff === null) throw new Error(`there is no diff of ${range}`);
if (diff.trim() === "") return { range, findings: [], reviewed_by: [] };

phase("Review");
const reviews = await parallel(
  reviewers.map((name) => () => agent(`Review this diff.\n\n${diff}`, { agent: name, label: name, schema })),
);
const answered = reviewers.filter((_, index) => reviews[index] !== null);
if (answered.length === 0) throw new Error("no reviewer answered");
const found = reviews.filter((review) => review !== null).flatMap(({ findings }) => findings);
log(`${answered.length} of ${reviewers.length} reviewers found ${found.length} faults`);
if (found.length === 0) return { range, findings: [], reviewed_by: answered };

phase("Judge");
const prompt = `These findings are about the diff below.\n\n${JSON.stringify(found, null, 1)}\n\n${diff}`;
const verdict = await agent(prompt, { agent: judge, label: "judge", schema });
if (verdict === null) throw new Error("the judge gave no verdict");
return { range, findings: verdict.findings, reviewed_by: answered };
