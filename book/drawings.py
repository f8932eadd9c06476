"""Make the book's conceptual drawings: one idea each, as SVG.

    python book/drawings.py [--out FOLDER]      all of them, into book/static/drawings

The files are committed, and a test makes them again. Every number in a drawing is computed here
from the few that its description names.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from drawing_kit import Sheet

FOLDER = Path(__file__).resolve().parent / "static" / "drawings"
MINUS = "−"


def signed(value: float, digits: int = 1) -> str:
    """Write a number with a real minus sign."""
    return f"{value:.{digits}f}".replace("-", MINUS)


def tokens_and_mean() -> Sheet:
    """Draw tokens, mask and mean."""
    tokens = ["[CLS]", "the", "cat", "sleeps", ".", "[SEP]", "[PAD]", "[PAD]"]
    states = [(1, 3), (2, 0), (5, 4), (4, 5), (0, 1), (0, 5), (7, 1), (7, 1)]
    mask = [1, 1, 1, 1, 1, 1, 0, 0]
    count = sum(mask)
    sums = [sum(m * h[k] for m, h in zip(mask, states, strict=True)) for k in range(2)]
    mean = [total / count for total in sums]
    sheet = Sheet(
        "Tokens, mask and mean",
        "The sentence “The cat sleeps.” as six tokens and two of padding. The encoder gives each a "
        "vector h, here of two numbers. The mask is 1 for tokens and 0 for padding. The embedding "
        f"u is the mean of the six vectors whose mask is 1: ({sums[0]}, {sums[1]}) divided by "
        f"{count} is ({mean[0]:g}, {mean[1]:g}).",
        430,
    )
    for y, label in ((45, "tokens"), (115, "encoder"), (205, "h"), (290, "mask")):
        if label != "encoder":
            sheet.words(14, y, label, align="start", bold=label == "h")
    sheet.box(100, 92, 586, 46, "encoder")
    for k, (token, state, on) in enumerate(zip(tokens, states, mask, strict=True)):
        x = 100 + 74 * k
        sheet.box(x, 22, 68, 44, token, size=18, role="w", dashed=not on)
        sheet.arrow((x + 34, 67), (x + 34, 91))
        sheet.arrow((x + 34, 139), (x + 34, 163))
        lines = [str(number) for number in state]
        sheet.box(x, 165, 68, 74, lines, role="h" if on else "u", dashed=not on)
        sheet.words(x + 34, 290, str(on), bold=bool(on))
        if on:
            sheet.line([(x + 34, 308), (x + 34, 326)])
    sheet.line([(134, 326), (504, 326)])
    sheet.arrow((319, 326), (319, 354))
    sheet.words(14, 386, f"sum of the {count}: ({sums[0]}, {sums[1]})", align="start")
    sheet.box(250, 356, 138, 58, f"u = ({mean[0]:g}, {mean[1]:g})", role="u", bold=True)
    sheet.words(400, 386, f"divided by {count}, not by {len(mask)}", align="start")
    return sheet


def layer_names() -> Sheet:
    """Draw the blocks, and what the five layer names take."""
    from bertflow_lite.encoders.pooling import LAYER_NAMES

    blocks = 6
    taken = {name: sorted(k % (blocks + 1) for k in LAYER_NAMES[name]) for name in LAYER_NAMES}
    sheet = Sheet(
        "What the five layer names take",
        "An encoder of six blocks has seven hidden states: 0 from the embedding layer, and 1 to 6 "
        "from the blocks. "
        + " ".join(
            f"{name} takes {' and '.join(map(str, states))}"
            f"{', the first token only' if name == 'cls' else ''}."
            for name, states in taken.items()
        )
        + " All but cls take the mean over the tokens; two states are averaged.",
        470,
    )
    at = [235 + 70 * k for k in range(blocks + 1)]
    sheet.words(14, 82, "hidden state", align="start")
    sheet.words(at[0], 32, "embed", size=18)
    sheet.words((at[1] + at[-1]) / 2, 32, "blocks 1 to 6", size=18)
    sheet.line([(at[1] - 25, 46), (at[1] - 25, 52), (at[-1] + 25, 52), (at[-1] + 25, 46)])
    for k, x in enumerate(at):
        sheet.box(x - 23, 60, 46, 44, str(k), role="h", bold=True)
        if k:
            sheet.arrow((x - 46, 82), (x - 24, 82))
    for offset in (1, 2):
        sheet.words(at[-offset], 122, f"{MINUS}{offset}", size=18)
    sheet.words(14, 122, "from the end", size=18, align="start")
    for row, (name, states) in enumerate(taken.items()):
        y = 170 + 46 * row
        sheet.words(14, y, name, align="start", bold=True)
        sheet.line([(at[0], y), (at[-1], y)], role="u", dashed=True)
        for k, x in enumerate(at):
            if k not in states:
                sheet.dots([(x, y)], role="u", radius=4, hollow=True)
            elif name == "cls":
                sheet.bar(x - 11, y - 11, 22, 22, "bad")
            else:
                sheet.dots([(x, y)], role="z", radius=12)
        if len(states) == 2:
            sheet.line([(at[states[0]], y), (at[states[1]], y)], role="z")
    sheet.bar(30, 411, 22, 22, "bad")
    sheet.words(64, 422, "first token only", align="start")
    sheet.dots([(282, 422)], role="z", radius=12)
    sheet.words(306, 422, "mean of all tokens; two: averaged", align="start")
    return sheet


def pmi() -> Sheet:
    """Draw a score as PMI plus log frequency plus a term of the context."""
    shares = {"milk": (0.2, 0.0001), "the": (0.1, 0.05)}
    term = 10.0
    parts = {
        word: (math.log(inside / overall), math.log(overall), term)
        for word, (inside, overall) in shares.items()
    }
    sheet = Sheet(
        "A score is three things in one",
        "The score of a word in a context, w times h, is PMI plus the logarithm of the word's "
        "frequency plus a term of the context alone. In an invented context, “The cat drinks …”, "
        "milk has the probability 0.2 there and 0.0001 overall, the has 0.1 and 0.05, and the "
        "context's term is 10. Milk: "
        + ", ".join(signed(p) for p in parts["milk"])
        + f", in all {sum(parts['milk']):.1f}. The: "
        + ", ".join(signed(p) for p in parts["the"])
        + f", in all {sum(parts['the']):.1f}.",
        500,
    )
    sheet.box(14, 18, 118, 48, "score w·h")
    sheet.words(150, 42, "=", bold=True)
    sheet.box(168, 18, 82, 48, "PMI", role="good")
    sheet.words(268, 42, "+", bold=True)
    sheet.box(286, 18, 172, 48, "log frequency", role="bad")
    sheet.words(476, 42, "+", bold=True)
    sheet.box(494, 18, 192, 48, "context’s term", role="h")
    sheet.words(14, 100, "An invented context: “The cat drinks …”", align="start")

    zero, unit = 250.0, 36.0
    for word, top in (("milk", 130), ("the", 300)):
        sheet.words(14, top + 50, word, align="start", bold=True)
        at = zero
        for row, (part, role) in enumerate(zip(parts[word], ("good", "bad", "h"), strict=True)):
            y = top + 34 * row
            sheet.bar(at, y, part * unit, 26, role, pointed=True)
            right = max(at, at + part * unit)
            at += part * unit
            sheet.line([(at, y), (at, y + 60 if row < 2 else y + 34)], dashed=True)
            sign = "+" if part > 0 else ""
            sheet.words(right + 10, y + 13, sign + signed(part), align="start")
        sheet.arrow((zero, top + 118), (at, top + 118))
        sheet.words(at + 10, top + 118, f"score {sum(parts[word]):.1f}", align="start", bold=True)
        sheet.line([(zero, top - 6), (zero, top + 128)])
        sheet.words(zero, top + 143, "0", size=18) if word == "the" else None
    sheet.words(350, 478, "Close scores: one by meaning, one by frequency.", italic=True)
    return sheet


def cone() -> Sheet:
    """Draw the cone, and the centered ball."""
    count, (x_mean, y_mean) = 15, (190.0, 205.0)
    turn = math.pi * (3 - math.sqrt(5))  # the golden angle spreads points evenly
    offsets = [
        (62 * math.sqrt((k + 0.5) / count) * math.cos(k * turn),
         62 * math.sqrt((k + 0.5) / count) * math.sin(k * turn))
        for k in range(count)
    ]  # fmt: skip
    across = [(x - y) for x, y in offsets]  # how far to the side of the mean's direction
    pair = across.index(min(across)), across.index(max(across))

    def cosine(shift: float) -> float:
        two = [offsets[k] for k in pair]
        (a, b), (c, d) = ((x + shift * x_mean, y + shift * y_mean) for x, y in two)
        return (a * c + b * d) / math.hypot(a, b) / math.hypot(c, d)

    before, after = cosine(1), cosine(0)
    sheet = Sheet(
        "The cone, and the centered ball",
        "Left: fifteen vectors from the origin, all pointing up and to the right in a narrow cone. "
        f"Two of them, A and B, have the cosine {signed(before, 2)}. Right: the same vectors after "
        "their mean was subtracted. They point everywhere, and the cosine of A and B is "
        f"{signed(after, 2)}.",
        430,
    )
    sheet.words(165, 32, "A narrow cone", bold=True)
    sheet.words(555, 32, "The same, centered", bold=True)
    for (left, base), shift, scale in (((45, 345), 1, 1.0), ((555, 205), 0, 1.7)):
        for k, (x, y) in enumerate(offsets):
            end = (
                left + scale * (x + shift * x_mean),
                base - scale * (y + shift * y_mean),
            )
            role = {pair[0]: "good", pair[1]: "bad"}.get(k, "u")
            sheet.arrow((left, base), end, role=role)
            if k in pair:
                # Beyond its end, away from the middle of the cloud.
                far = 24 / math.hypot(x, y)
                sheet.words(end[0] + far * x, end[1] - far * y, "AB"[pair.index(k)], bold=True)
        sheet.dots([(left, base)], radius=6)
    sheet.arrow((362, 205), (432, 205))
    sheet.words(396, 160, "subtract", size=18)
    sheet.words(396, 183, "the mean", size=18)
    sheet.words(165, 400, f"cosine of A and B: {signed(before, 2)}")
    sheet.words(545, 400, f"cosine of A and B: {signed(after, 2)}")
    return sheet


def change_of_variables() -> Sheet:
    """Draw a change of variables: sand on a rubber band."""
    rows, columns, grain = 4, 15, 16
    grains = rows * columns
    stretch = (2.0, 0.5)
    left, top, bottom = 50.0, 150.0, 372.0
    half = columns * grain
    sheet = Sheet(
        "Sand on a rubber band",
        f"A rubber band, z, with sand of even height: {grains} grains on each half. Below, the "
        "same band, u: its left half is stretched to twice its length, and its sand lies half as "
        "high; its right half is squeezed to half its length, and its sand lies twice as high. No "
        f"grain is lost: each half still has {grains}.",
        486,
    )
    sheet.words(350, 32, "No grain is lost: height × length stays the same.", bold=True)
    x = left
    for _ in range(2):
        sheet.dots(
            (
                (x + (c + 0.5) * grain, top - (r + 0.5) * grain)
                for r in range(rows)
                for c in range(columns)
            ),
            radius=5,
        )
        sheet.box(x, top + 2, half, 34, f"z: {rows} grains high", role="z", size=18)
        x += half
    x = left
    for part, factor in enumerate(stretch):
        width = half * factor
        deep = round(rows / factor)
        drawn = 0
        for r in range(deep):
            # Rows that do not divide evenly take turns, each in the gaps of the one below.
            fit = grains / deep
            here = math.ceil(fit) if r % 2 == 0 else math.floor(fit)
            start = x + (width - here * grain) / 2
            sheet.dots(
                ((start + (c + 0.5) * grain, bottom - (r + 0.5) * grain) for c in range(here)),
                radius=5,
            )
            drawn += here
        if drawn != grains:
            raise ValueError(f"{drawn} grains are drawn, and {grains} are there")
        label = f"u: {deep} grains high" if part == 0 else f"u: {deep} high"
        sheet.box(x, bottom + 2, width, 34, label, role="u", size=18)
        words = (
            ("twice as long:", "half as high") if part == 0 else ("half as long:", "twice as high")
        )
        for row, text in enumerate(words):
            sheet.words(x + width / 2, bottom + 60 + 24 * row, text)
        old, x = left + half * (part + 1), x + width
        sheet.line([(old, top + 40), (x, bottom - 134)], dashed=True)
    sheet.line([(left, top + 40), (left, bottom - 40)], dashed=True)
    return sheet


def coupling() -> Sheet:
    """Draw an additive coupling."""
    first, second, shift = 3, 2, 5
    sheet = Sheet(
        "An additive coupling",
        "The vector u is cut into two halves. The first half passes unchanged: u₁ = z₁ = "
        f"{first}. A network g reads it and gives {shift}, which is added to the second half: "
        f"z₂ = {second} + {shift} = {second + shift}. To go back, g reads z₁, gives the same "
        f"{shift}, and it is subtracted: {second + shift} {MINUS} {shift} = {second}.",
        440,
    )
    sheet.box(24, 60, 120, 60, f"u₁ = {first}", role="u")
    sheet.box(24, 260, 120, 60, f"u₂ = {second}", role="u")
    sheet.words(84, 30, "u, cut in two", size=18)
    sheet.arrow((146, 90), (552, 90))
    sheet.words(440, 66, "unchanged", size=18)
    sheet.box(556, 60, 120, 60, f"z₁ = {first}", role="z")
    sheet.dots([(320, 90)], radius=6)
    sheet.arrow((320, 90), (320, 148))
    sheet.box(240, 150, 160, 54, f"g({first}) = {shift}")
    sheet.words(414, 166, "any network:", size=18, align="start")
    sheet.words(414, 190, "it is never inverted", size=18, align="start")
    sheet.arrow((320, 206), (320, 266))
    sheet.dots([(320, 290)], radius=22, hollow=True)
    sheet.words(320, 289, "+", size=28, bold=True)
    sheet.arrow((146, 290), (296, 290))
    sheet.arrow((344, 290), (552, 290))
    sheet.words(450, 266, f"{second} + {shift}", size=18)
    sheet.box(556, 260, 120, 60, f"z₂ = {second + shift}", role="z")
    sheet.words(
        350,
        368,
        f"The way back:  u₂ = z₂ {MINUS} g(z₁) = {second + shift} {MINUS} {shift} = {second}",
    )
    sheet.words(350, 406, "It shifts and never stretches: the log-determinant is 0.", italic=True)
    return sheet


def multi_scale() -> Sheet:
    """Draw a flow of two levels."""
    half, side = 4, 44
    left, right = 40, 40 + half * side + 34
    wide = half * side - 4
    sheet = Sheet(
        "Multi-scale: half may leave early",
        "An embedding u of eight numbers goes through level 1. Then it is cut. The second half is "
        "finished. The first half goes on through level 2, which works on four numbers only. The "
        "latent z has eight numbers: first those that were finished first, then those of level 2.",
        480,
    )
    for x in (left, right):
        sheet.cells(x, 24, half, side=side, role="u")
        sheet.arrow((x + wide / 2, 66), (x + wide / 2, 90))
        sheet.arrow((x + wide / 2, 140), (x + wide / 2, 164))
    sheet.box(left, 92, right + wide - left, 46, "level 1")
    sheet.cells(left, 166, half, side=side, role="u")
    sheet.cells(right, 166, half, side=side, role="z")
    sheet.arrow((left + wide / 2, 208), (left + wide / 2, 238))
    sheet.box(left, 240, wide, 46, "level 2")
    sheet.arrow((left + wide / 2, 288), (left + wide / 2, 312))
    sheet.cells(left, 314, half, side=side, role="z", full=True)
    sheet.arrow((left + wide / 2, 356), (right + wide / 2, 420))
    sheet.arrow((right + wide / 2, 208), (right + wide / 2, 356), (left + wide / 2, 420))
    sheet.cells(left, 422, half, side=side, role="z")
    sheet.cells(right, 422, half, side=side, role="z", full=True)
    for y, text, bold in (
        (44, "u: 8 numbers", True),
        (115, "works on all 8", False),
        (174, "first half goes on,", False),
        (200, "second is finished", False),
        (263, "works on 4 only", False),
        (442, "z: 8 numbers", True),
    ):
        sheet.words(460, y, text, align="start", bold=bold)
    return sheet


def control() -> Sheet:
    """Draw the control: nothing learned, the same flow."""
    sheet = Sheet(
        "The control: nothing learned, the same flow",
        "Two lanes. In the first, a pre-trained encoder makes the embeddings u, a flow is fitted "
        "on them, and the latents z are scored. In the second, a bag of words times random vectors "
        "makes u: nothing was learned from text. A flow of the same recipe is fitted on these, and "
        "they are scored alike. If both gain, the gain is no proof of learned meaning.",
        430,
    )
    sheet.box(12, 142, 112, 66, ["the cat", "sleeps"], role="w")
    for y, lines, score in (
        (42, ["trained", "encoder"], "gain A"),
        (224, ["bag of words", "× random vectors"], "gain B"),
    ):
        middle = y + 42
        sheet.arrow((124, 175), (152, middle))
        sheet.box(154, y, 202, 84, lines, size=18)
        sheet.arrow((357, middle), (377, middle))
        sheet.box(379, middle - 25, 48, 50, "u", role="u", bold=True)
        sheet.arrow((428, middle), (454, middle))
        sheet.arrow((549, middle), (573, middle))
        sheet.box(575, middle - 36, 48, 72, "z", role="z", bold=True)
        sheet.words(658, middle - 12, "gain", size=18)
        sheet.words(658, middle + 12, score[-1] + "?", size=18, bold=True)
    sheet.box(456, 42, 92, 266, ["same", "flow,", "fitted", "on", "each"])
    sheet.words(252, 24, "learned from text", size=18)
    sheet.words(252, 330, "nothing learned", size=18)
    sheet.words(350, 386, "What B gains cannot come from learned meaning.", italic=True)
    return sheet


WORD_SHARES = {"the": 0.0537, "cat": 6.03e-05, "sleeps": 5.13e-06}
"""Shares of all English words, as the package wordfreq gives them."""


def weights() -> Sheet:
    """Draw weights by rarity, and the weighted mean."""
    constant = 0.001
    weight = {word: constant / (constant + share) for word, share in WORD_SHARES.items()}
    total = sum(weight.values())
    sheet = Sheet(
        "Weights by rarity",
        "Three words with their shares of all words, and the weight a / (a + p) with a = 0.001. "
        + " ".join(
            f"{word}: share {share:g}, weight {weight[word]:.2f}, "
            f"{100 * weight[word] / total:.0f} percent of the mean."
            for word, share in WORD_SHARES.items()
        )
        + " In a plain mean each is a third.",
        420,
    )
    sheet.words(70, 34, "word", size=18)
    sheet.words(210, 34, "one word in", size=18)
    sheet.words(380, 34, "weight", size=18)
    sheet.words(604, 34, "part of the mean", size=18)
    for row, (word, share) in enumerate(WORD_SHARES.items()):
        y = 92 + 80 * row
        digits = 1 if share > 0.01 else -3
        sheet.box(14, y - 27, 112, 54, word, role="w")
        sheet.words(210, y, f"{round(1 / share, None if digits == 1 else digits):,.0f}")
        sheet.bar(300, y - 20, 160 * weight[word], 40, "w")
        sheet.words(470, y, f"{weight[word]:.2f}", align="start")
        sheet.words(604, y, f"33% → {100 * weight[word] / total:.0f}%", bold=True)
    sheet.line([(300, 58), (300, 288)])
    sheet.words(350, 326, "weight = a / (a + p),  a = 0.001,  p = share of all words")
    sheet.words(350, 356, "u = weighted mean of the words’ vectors")
    sheet.words(350, 394, "What nearly every sentence has hardly counts.", italic=True)
    return sheet


def pipeline() -> Sheet:
    """Draw how one encodes, calibrates and compares."""
    sheet = Sheet(
        "Encode, calibrate, compare",
        "Once: your sentences are encoded to embeddings u, a calibrator is fitted on them, and "
        "saved as one file. Each time: two texts are encoded by the same encoder to u, the saved "
        "calibrator turns them into z, and their cosine is taken.",
        430,
    )
    for y, heading in ((26, "Once"), (238, "Every time after")):
        sheet.words(14, y, heading, align="start", bold=True)
    for y, lines, step in (
        (56, ["your", "sentences"], "fit"),
        (268, ["two", "texts"], "calibrate"),
    ):
        middle = y + 40
        sheet.box(14, y, 126, 80, lines, role="w")
        sheet.arrow((141, middle), (165, middle))
        sheet.box(167, y, 104, 80, "encode")
        sheet.arrow((272, middle), (296, middle))
        sheet.box(298, middle - 28, 48, 56, "u", role="u", bold=True)
        sheet.arrow((347, middle), (371, middle))
        sheet.box(373, y, 120, 80, step)
        sheet.arrow((494, middle), (522, middle))
    sheet.box(524, 56, 162, 80, ["calibrator,", "one file"], role="good")
    sheet.arrow((605, 137), (605, 200), (433, 200), (433, 266))
    sheet.words(520, 182, "load", size=18)
    sheet.box(524, 280, 48, 56, "z", role="z", bold=True)
    sheet.arrow((573, 308), (597, 308))
    sheet.box(599, 268, 87, 80, "cosine")
    sheet.words(350, 392, "The same encoder and the same layers, both times.", italic=True)
    return sheet


def will_it_help() -> Sheet:
    """Draw a decision tree on whether calibrating will help."""
    sheet = Sheet(
        "Will calibrating help me?",
        "A decision tree. Is the encoder tuned for sentences, by its card? If yes, leave it as it "
        "is. If not: is the mean cosine of your sentences near 0? If yes, leave it. If not, the "
        "space alone cannot tell: try weights by rarity, then a calibrator; rate a hundred pairs; "
        "keep a change only if its lead is clear, with an interval that leaves out 0.",
        520,
    )
    for y, lines in (
        (24, ["Is the encoder tuned", "for sentences (its card)?"]),
        (158, ["Is the mean cosine of", "your sentences near 0?"]),
    ):
        sheet.box(20, y, 320, 84, lines)
        sheet.arrow((341, y + 42), (486, y + 42))
        sheet.words(410, y + 22, "yes", bold=True)
        sheet.arrow((180, y + 85), (180, y + 132))
        sheet.words(212, y + 108, "no", bold=True)
    sheet.box(488, 24, 190, 218, ["Leave it,", "or standardize", "at most."], role="good")
    sheet.box(20, 292, 320, 62, "The space cannot tell you.", role="bad")
    sheet.arrow((180, 355), (180, 386))
    sheet.box(
        20,
        388,
        658,
        112,
        [
            "1. Try weights by rarity, then a calibrator.",
            "2. Rate a hundred pairs, and compare on them.",
            "3. Keep it if the interval of its lead leaves out 0.",
        ],
        role="do",
    )
    return sheet


DRAWINGS: dict[str, Callable[[], Sheet]] = {
    "tokens_and_mean": tokens_and_mean,
    "layer_names": layer_names,
    "pmi": pmi,
    "cone": cone,
    "change_of_variables": change_of_variables,
    "coupling": coupling,
    "multi_scale": multi_scale,
    "control": control,
    "weights": weights,
    "pipeline": pipeline,
    "will_it_help": will_it_help,
}
"""File name, without its ending, and what draws it."""


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all drawings, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in DRAWINGS.items():
        files.append(folder / f"{name}.svg")
        files[-1].write_text(draw().svg(), encoding="utf-8")
    return files


def main() -> None:
    """Write the drawings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    print(f"{len(write(parser.parse_args().out))} drawings")


if __name__ == "__main__":
    main()
