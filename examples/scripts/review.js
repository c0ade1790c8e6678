// A pipeline: each document is reviewed, and what the review found is verified, without waiting for the other documents.
const documents = args?.documents ?? ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/no-such-file.md"];

const reviewed = await pipeline(
  documents,
  async (path) => {
    phase("Review");
    const text = await agent(path, { agent: "read", label: `read ${path}` });
    if (text === null) return null; // the chain of this document ends here; the others go on
    const headings = text.split("\n").filter((line) => line.startsWith("#")).length;
    return { path, claim: headings };
  },
  async ({ path, claim }) => {
    phase("Verify");
    const answer = await agent(`'^#' ${path}`, { agent: "grep", label: `count headings of ${path}` });
    if (answer === null) return null;
    return { path, headings: claim, confirmed: answer.startsWith(`${claim} match`) };
  },
);

return {
  confirmed: reviewed.filter((each) => each?.confirmed),
  doubtful: reviewed.filter((each) => each && !each.confirmed),
  unread: documents.filter((_, index) => reviewed[index] === null),
};
