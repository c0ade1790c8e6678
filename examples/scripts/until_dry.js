// A loop that goes on until a round finds nothing new, or the budget has no room for another round.
const found = new Set();
const words = [...(args?.words ?? ["lease"])];
const ROUND_TOKENS = args?.round_tokens ?? 1000;

for (let round = 1; words.length > 0; round++) {
  if (budget.remaining() < ROUND_TOKENS) {
    log(`the budget of ${budget.total} tokens has no room for round ${round}`);
    break;
  }
  phase(`Round ${round}`);
  const asked = words.splice(0);
  const answers = await parallel(
    asked.map((word) => () =>
      agent(`'${word}' docs/*.md`, { agent: "grep", label: `where is "${word}"?`, max_tokens: ROUND_TOKENS / asked.length | 0 }),
    ),
  );
  const fresh = answers
    .filter((answer) => answer !== null)
    .flatMap((answer) => answer.split("\n").slice(1).map((line) => line.split(":")[0]))
    .filter((path) => path && !found.has(path));
  for (const path of fresh) found.add(path);
  // Each new document suggests one more word to look for.
  words.push(...new Set(fresh.map((path) => path.replace(/^docs\/|\.md$/g, ""))));
}
return [...found].sort();
