// A loop that asks for more until a round finds nothing new, or the budget has no room for another round.
const path = args?.path ?? "examples/survey.py";
const ROUND_TOKENS = args?.round_tokens ?? 50000;
const schema = { type: "array", items: { type: "string" }, maxItems: 5 };
const found = [];

for (let round = 1; round <= 10; round++) {
  if (budget.remaining() < ROUND_TOKENS) {
    log(`the budget of ${budget.total} tokens has no room for round ${round}`);
    break;
  }
  phase(`Round ${round}`);
  const known = found.length > 0 ? ` These are known; name others only:\n${found.join("\n")}` : "";
  const faults = await agent(`Name the faults of ${path}, each in one line.${known}`, {
    agent: "reviewer",
    label: `round ${round}`,
    schema,
    max_tokens: ROUND_TOKENS,
  });
  const fresh = (faults ?? []).filter((fault) => !found.includes(fault));
  if (fresh.length === 0) break;
  found.push(...fresh);
}
return found;
