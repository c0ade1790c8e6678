// A fan-out: questions about this repository, asked at once. The agents are built in and need no model.
// One of them is bound to fail. It is null here and touches no other; why, the result says.
phase("Ask");
const questions = [
  { label: "How long is the front page?", agent: "wordcount", prompt: "README.md" },
  { label: "How long is the page on how it is built?", agent: "wordcount", prompt: "ARCHITECTURE.md" },
  { label: "Which Python file is the largest?", agent: "largest", prompt: "**/*.py" },
  { label: "Which errors may callers meet?", agent: "grep", prompt: "'^class \\w+\\(FanfoldError\\)' fanfold/*.py" },
  { label: "What happens to a question that nobody can answer?", agent: "read", prompt: args?.missing ?? "docs/no-such-file.md" },
];
const answers = await parallel(
  questions.map(({ label, agent: name, prompt }) => async () => {
    const answer = await agent(prompt, { agent: name, label });
    return answer && { question: label, answer: answer.split("\n")[0] };
  }),
);

const known = answers.filter((answer) => answer !== null);
log(`${known.length} of ${questions.length} questions are answered`);
return known;
