/* What people type, as words for the theme's search worker. hooks.py puts this text before the worker's own.

The worker takes a query in lunr's language, where `--waste` is an error, `a` is every word that begins with a, and
`fence` does not find `fencing`. People paste flags and messages. So each query becomes plain words here:

- no operators: `-`, `+`, `~`, `^`, `:`, `*` and quotes are spaces;
- no stop words, unless there is nothing else;
- each word as it is, and all words that begin with its stem;
- names, as search_index.py joins them (joined_names): of several words, such as ImagePullBackOff and gpu-mem, flags, and
  neighbors in a message;
- Chinese by single characters and, stronger, by pairs of them. */

const QUERY = 2; // SearchMessageType of the theme
const MARK = "\u02b7"; // as in search_index.py
const EXACT = 1;
const SAME_STEM = 2; // and the exact word has both
const NAME = 6;
const SHORTEST_STEM = 4; // gpu begins too many words, so of short ones only the plural counts, too
const LONG_NAME = 10; // from so many letters on, its beginning finds a name, too

addEventListener("message", () => tellTokenSetsApart(), { once: true }); // before the worker makes its index

addEventListener("message", (event) => {
  const { type, data } = event.data;
  // An event that this listener sent is not trusted.
  if (type !== QUERY || !event.isTrusted) {
    return;
  }
  event.stopImmediatePropagation();
  dispatchEvent(new MessageEvent("message", { data: { type, data: asTerms(data) } }));
});

/* lunr merges sets of endings that it writes in the same way, and writes the edge 1 to set 23 as the edge 1 to set 2 beside
the edge 3 to another. Then it finds words that the index does not have, and the whole query fails. */
function tellTokenSetsApart() {
  lunr.TokenSet.prototype.toString = function () {
    const edges = Object.keys(this.edges).sort();
    return this._str || [this.final, ...edges.map((label) => label + this.edges[label].id)].join("|");
  };
}

function asTerms(query) {
  const terms = new Set();
  const runs = query.match(/[A-Za-z0-9][A-Za-z0-9._/=-]*/g) || [];
  const partsOfRuns = runs.map((run) => partsOf(run));
  const flags = query.match(/(?<![\w-])--[a-z][a-z-]*/g) || [];
  addFlags(terms, flags);
  runs.filter((run) => !flags.includes(`--${run}`)).forEach((run) => addNames(terms, run));
  partsOfRuns.slice(1).forEach((parts, index) => addPair(terms, partsOfRuns[index].at(-1), parts[0]));
  addWords(terms, partsOfRuns);
  for (const run of query.match(/[\u4e00-\u9fff]+/g) || []) {
    addHan(terms, run);
  }
  return [...terms].join(" ");
}

function partsOf(name) {
  const parts = name.split(lunr.tokenizer.separator).filter((part) => part !== "");
  return parts.map((part) => part.toLowerCase());
}

function isTelling(word) {
  return Boolean(lunr.stopWordFilter(word));
}

function addFlags(terms, flags) {
  for (const flag of flags) {
    addName(terms, `flag${partsOf(flag).join("")}`);
  }
}

function addNames(terms, run) {
  for (const name of [run, ...run.split("/"), ...run.split("=")]) {
    addName(terms, partsOf(name).join(""));
  }
}

function addName(terms, name) {
  if (name.length >= SHORTEST_STEM) {
    terms.add(`${MARK}${name}^${NAME}`);
  }
  if (name.length >= LONG_NAME) {
    terms.add(MARK + name);
  }
}

/* Neighbors in a message that say something together, such as "not found", but not "change the". */
function addPair(terms, first, second) {
  if ([first, second].every((word) => isTelling(word) || word === "not")) {
    addName(terms, first + second);
  }
}

/* The parts of a name count less than a word, because the name has them, too. */
function addWords(terms, partsOfRuns) {
  const words = partsOfRuns.filter((parts) => parts.length === 1).map((parts) => parts[0]);
  const telling = words.filter(isTelling);
  for (const word of telling.length > 0 ? telling : words) {
    addWord(terms, word);
  }
  for (const part of partsOfRuns.filter((parts) => parts.length > 1).flat()) {
    terms.add(`${part}^${EXACT}`);
  }
}

function addWord(terms, word) {
  const beginning = commonBeginning(word, lunr.stemmer(new lunr.Token(word)).toString());
  if (beginning.length >= SHORTEST_STEM) {
    terms.add(`${word}^${EXACT}`);
    terms.add(`${beginning}*^${SAME_STEM}`);
  } else {
    terms.add(`${word}^${EXACT + SAME_STEM}`);
    terms.add(`${word}s^${SAME_STEM}`);
  }
}

/* The stem of "memory" is "memori", and only its beginning is one of "memories", too. */
function commonBeginning(word, stem) {
  let length = 0;
  while (length < stem.length && word[length] === stem[length]) {
    length += 1;
  }
  return word.slice(0, length);
}

function addHan(terms, run) {
  const codes = [...run].map((character) => character.codePointAt(0).toString(16));
  for (const character of run) {
    terms.add(`${character}^1`);
  }
  codes.slice(1).forEach((code, index) => terms.add(`${MARK}${codes[index]}${code}^${NAME}`));
}
