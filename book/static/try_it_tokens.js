// Sentences to word pieces, as BERT's uncased tokenizer does it.
// Control characters go, white space becomes a blank, accents go, letters become small; then words
// are cut at white space and punctuation, and each into the longest pieces that the model knows.
(function () {
  "use strict";

  const SPECIAL = /(\[(?:PAD|UNK|CLS|SEP|MASK)\])/;
  const REMOVED = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]/u; // lone surrogates (Cs) among them
  const BLANK = /[\t\n\r]|\p{White_Space}/u;
  const ACCENT = /\p{Mn}/u;
  const PUNCTUATION = /[!-/:-@[-`{-~]|\p{P}/u;
  const LONGEST_WORD = 100; // characters; a longer word is unknown
  // Chinese characters stand alone; kana and hangul do not.
  const CHINESE = [
    [0x3400, 0x4dbf],
    [0x4e00, 0x9fff],
    [0xf900, 0xfaff],
    [0x20000, 0x2a6df],
    [0x2a700, 0x2b73f],
    [0x2b740, 0x2b81f],
    [0x2b920, 0x2ceaf],
    [0x2f800, 0x2fa1f],
  ];

  function isChinese(character) {
    const code = character.codePointAt(0);
    return code >= 0x3400 && CHINESE.some(([low, high]) => low <= code && code <= high);
  }

  function clean(text) {
    let out = "";
    for (const character of text) {
      // Tab and line ends are control characters, too, so they come first.
      if (/[\t\n\r]/.test(character)) out += " ";
      else if (REMOVED.test(character)) continue;
      else if (BLANK.test(character)) out += " ";
      else out += isChinese(character) ? ` ${character} ` : character;
    }
    return out;
  }

  function normalize(text) {
    let out = "";
    for (const character of clean(text).normalize("NFD")) {
      // Letter by letter: as a word, a Greek one would get another sigma at its end.
      if (!ACCENT.test(character)) out += character.toLowerCase();
    }
    return out;
  }

  function split(text) {
    const words = [];
    let word = "";
    const end = function () {
      if (word) words.push(word);
      word = "";
    };
    for (const character of normalize(text)) {
      if (BLANK.test(character)) end();
      else if (PUNCTUATION.test(character)) {
        end();
        words.push(character);
      } else word += character;
    }
    end();
    return words;
  }

  // A function that gives {ids, cut}: the numbers of the pieces, [CLS] and [SEP] around them, and
  // whether some were cut off to leave `longest`.
  function makeTokenizer(pieces, longest) {
    const number = new Map(pieces.map((piece, id) => [piece, id]));
    const unknown = number.get("[UNK]");

    function cutWord(word) {
      const characters = Array.from(word);
      if (characters.length > LONGEST_WORD) return [unknown];
      const found = [];
      for (let start = 0; start < characters.length;) {
        let end = characters.length;
        let id;
        while (end > start) {
          id = number.get((start ? "##" : "") + characters.slice(start, end).join(""));
          if (id !== undefined) break;
          end -= 1;
        }
        if (end === start) return [unknown]; // no piece fits: the whole word is unknown
        found.push(id);
        start = end;
      }
      return found;
    }

    return function tokenize(text) {
      const ids = [];
      for (const part of text.split(SPECIAL)) {
        // A special piece that is written out counts as that piece, as in transformers.
        if (SPECIAL.test(part)) ids.push(number.get(part));
        else for (const word of split(part)) ids.push(...cutWord(word));
      }
      const kept = ids.slice(0, longest - 2);
      return {
        ids: [number.get("[CLS]"), ...kept, number.get("[SEP]")],
        cut: kept.length < ids.length,
      };
    };
  }

  (window.bertflowTryIt ??= {}).makeTokenizer = makeTokenizer;
})();
