"""Partners by name: markers, orphans, doubles and order."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from packer.sources.pairing import entry_of, pair, stem

NUMBERS = [f"{i:04}" for i in range(1, 121)]


def png(names):
    return [f"{name}.png" for name in names]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ({"lr": "{}x4", "hr": "{}"}, "{}"),
        ({"lr": "{}", "hr": "{}"}, "{}"),
        ({"lr": "img{}_LR", "hr": "img{}_HR"}, "img{}"),
        ({"lr": "img{}_LRBI_x4", "hr": "img{}_HR_x4"}, "img{}"),
        ({"lr": "{}_x2", "hr": "{}_x4"}, "{}"),
        ({"lr": "LR_{}", "hr": "HR_{}"}, "{}"),
        ({"lr": "LR_{}x4", "hr": "HR_{}"}, "{}"),
        ({"lr": "X4/{}x4", "hr": "{}"}, "{}"),
        ({"lr": "lr/{}", "hr": "hr/{}"}, "{}"),
        ({"lr": "{}/lr/im", "hr": "{}/hr/im"}, "{}/im"),
        ({"x2": "{}x2", "x4": "{}x4", "hr": "{}"}, "{}"),
        ({"a": "{}_A", "b": "{}_B", "c": "{}_BB"}, "{}"),
        ({"a": "{}_A", "b": "{}_B", "c": "{}"}, "{}"),
        ({"lr": "v1/{}.part_lr", "hr": "v1/{}.part_hr"}, "v1/{}"),
        ({"left": "{}_L_cam", "right": "{}_R_cam"}, "{}"),
        ({"t1": "{0}/{0}_t1", "t1ce": "{0}/{0}_t1ce", "t2": "{0}/{0}_t2", "seg": "{0}/{0}_seg"}, "{0}/{0}"),
        ({"t1": "G-{}-t1n", "t2": "G-{}-t2w"}, "G-{}"),
    ],
)
@pytest.mark.parametrize("count", [2, 120])
def test_markers_of_every_form_are_found(patterns, names, count):
    """Markers at either end, at both, and in folders are found, for few files and for many."""
    files = {field: png(pattern.format(number) for number in NUMBERS[:count]) for field, pattern in patterns.items()}
    paired = pair(files)
    assert paired.names == [names.format(number) for number in NUMBERS[:count]]
    assert paired.files == files
    assert not any(paired.orphans.values())
    assert not paired.doubles


@pytest.mark.parametrize("names", [["aachen", "bochum", "ulm"], NUMBERS[:9], ["v1", "v2", "v3", "v10"]])
@pytest.mark.parametrize(
    ("patterns", "name"),
    [
        (
            {"image": "{0}/{0}_000000_000019_leftImg8bit", "label": "{0}/{0}_000000_000019_gtFine_labelIds"},
            "{0}/{0}_000000_000019",
        ),
        ({"image": "{}", "depth": "{}-depth16"}, "{}"),
        ({"blue": "T32_{}_B02_10m", "green": "T32_{}_B03_10m"}, "T32_{}"),
        ({"t1": "sub-{}_T1w", "t2": "sub-{}_acq-T2star2d"}, "sub-{}"),
        ({"old": "2019_site_{}", "new": "2020_site_{}"}, "{}"),
    ],
)
def test_a_mark_may_have_a_number_inside(names, patterns, name):
    """A number that all names of a field share comes off with what stands around it."""
    files = {field: png(pattern.format(word) for word in names) for field, pattern in patterns.items()}
    paired = pair(files)
    assert paired.names == [name.format(word) for word in names]
    assert paired.files == files
    assert paired.is_whole


@pytest.mark.parametrize(
    ("low", "high"),
    [("{}_10_lr", "{}_12_hr"), ("cam0_{}", "cam1_{}"), ("7_{}", "8_{}")],
)
@pytest.mark.parametrize("stray", [False, True])
def test_a_number_next_to_the_name_is_part_of_it(low, high, stray):
    """As is one that not all names share, wherever it stands: the files of two moments are no partners."""
    words = ["aachen", "bochum", "ulm", "zurich"]
    files = {"lr": png(map(low.format, words)), "hr": png(map(high.format, words))}
    if stray:
        files = {
            "lr": png([*(f"{word}_B02_x" for word in words), "stray"]),
            "hr": png(f"{word}_B03_y" for word in words),
        }
    assert pair(files).names == []


def test_stray_files_do_not_hide_a_marker():
    """Files without a partner are orphans; the others still pair by their marker."""
    files = {"lr": png([f"{n}x4" for n in NUMBERS[1:]] + ["stray"]), "hr": png(NUMBERS[:-1])}
    paired = pair(files)
    assert paired.names == NUMBERS[1:-1]
    assert paired.orphans == {"lr": [f"{NUMBERS[-1]}x4.png", "stray.png"], "hr": [f"{NUMBERS[0]}.png"]}


@pytest.mark.parametrize("fields", [["lr", "hr"], ["x"]])
def test_names_that_agree_are_left_alone(fields):
    """No marker is taken off where names agree as they are, or of one field, whatever names share."""
    assert pair(dict.fromkeys(fields, png(["a_x4", "b_x4"]))).names == ["a_x4", "b_x4"]


@pytest.mark.parametrize("count", [2, 5, 100])
@pytest.mark.parametrize(
    ("low", "high"),
    [("{}", "{}"), ("img_{}_LR", "img_{}_HR"), ("{}x4", "{}x2"), ("LR_{}", "HR_{}"), ("pic{}", "photo{}")],
)
def test_a_marker_cuts_no_number(low, high, count):
    """`0801_LR` is no partner of `0001_HR`, though both begin with a zero, however many files there are."""
    first, last = (
        png(form.format(f"{n:04}") for n in range(start, start + count)) for form, start in [(low, 801), (high, 1)]
    )
    paired = pair({"lr": first, "hr": last})
    assert paired.names == []
    assert paired.orphans == {"lr": first, "hr": last}


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("2020-10_hr", "2020-19_lr"),
        ("2020-10_hr", "2021-10_lr"),
        ("v0_f28_lr", "v1_f10_hr"),
        ("v2_f20_lr", "v2_f15_x4"),
        ("scene1_iso100", "scene2_iso50"),
        ("LRx2v0_f27", "small_v0_f17"),
        ("x2head", "x4img2"),
        ("baby1_lr", "baby_hr"),
        ("baby_lr", "bird_hr"),
        ("6", "_x426"),
        ("_lr0024", "_x40015"),
        ("x20801", "0801"),
        ("a_noise50", "a_512"),
    ],
)
def test_one_file_for_each_field_is_one_sample(low, high):
    """With one file each nothing is ambiguous: they pair, called as the first of them."""
    paired = pair({"lr": png([low]), "hr": png([high])})
    assert paired.names == [low]
    assert paired.files == {"lr": png([low]), "hr": png([high])}
    assert not any(paired.orphans.values())
    assert not paired.taken


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        ("x{s}/{n}_LRBI_x{s}", "x{s}/{n}_HR_x{s}", "x{s}/{n}"),
        ("X{s}/{n}x{s}", "X{s}/{n}", "X{s}/{n}"),
        ("lr/x{s}/{n}_LRBI_x{s}", "hr/x{s}/{n}_HR_x{s}", "x{s}/{n}"),
        ("x{s}/LR/{n}_LRBI_x{s}", "x{s}/HR/{n}_HR_x{s}", "x{s}/{n}"),
    ],
)
@pytest.mark.parametrize("words", [["baby"], ["baby", "bird", "head"]])
def test_every_folder_may_have_markers_of_its_own(low, high, names, words):
    """Where no marker fits all folders, markers are sought folder by folder, and each pairs its files."""
    filled = [{"s": scale, "n": word} for scale in (2, 3, 4) for word in words]
    files = {field: png(form.format(**some) for some in filled) for field, form in (("lr", low), ("hr", high))}
    paired = pair(files)
    assert paired.names == [names.format(**some) for some in filled]
    assert paired.files == files
    assert not any(paired.orphans.values())


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        ("babyx2", "baby", "baby"),
        ("img_LR", "img_HR", "img"),
        ("a_smallx2", "a_small", "a"),
        ("babyx2", "babyx4", "baby"),
        ("0801x4", "0801", "0801"),
        ("0801x4", "0801x16", "0801"),
        ("0801_LRBI_x4", "0801_HR", "0801"),
        ("4x_0801", "HR_0801", "0801"),
        ("X4/0801x4", "0801", "0801"),
        ("v0_f28_lr", "v0_f28_hr", "v0_f28"),
        ("img_2x", "img", "img"),
        ("v1/a_LR", "v2/a_HR", "a"),
    ],
)
def test_one_pair_is_enough_to_find_a_marker(low, high, name):
    """The names of a single pair are cut by the same rule as those of many; a scale is no part of them."""
    assert pair({"lr": png([low]), "hr": png([high])}).names == [name]


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (["0001x4", "0002x4"], ["0001"], ["0001"]),
        (["LR_0001", "LR_0002", "LR_0003"], ["0002"], ["0002"]),
        (["bird2_x8", "img2_x8"], ["baby_ax2", "woman_ax2"], []),
        (["_lrhead", "_lrbird1"], ["_x4bird2"], []),
    ],
)
def test_one_pair_among_many_is_no_chance(low, high, names):
    """One name that agrees with one of many is believed where its marker cuts neither word nor number."""
    assert pair({"lr": png(low), "hr": png(high)}).names == names


def test_two_files_of_one_name_are_told():
    """A second file of the same name and field is reported with the first and left out."""
    paired = pair({"x": ["a.jpg", "a.png", "b.png"]})
    assert paired.doubles == [("x", "a.jpg", "a.png", "a")]
    assert paired.files == {"x": ["a.jpg", "b.png"]}


def test_samples_stand_in_natural_order():
    """Numbers in names count as numbers, and the order does not depend on the order of the files."""
    files = png(["b/1", "a10", "a2", "a1", "a01"])
    expected = ["a01", "a1", "a2", "a10", "b/1"]
    assert pair({"x": files}).names == expected
    assert pair({"x": files[::-1]}).names == expected


def test_stem_takes_the_last_suffix_alone():
    """Dots in folders and inside names stay."""
    assert [stem("a.b/c.d.png"), stem("a.b/c")] == ["a.b/c.d", "a.b/c"]


@settings(max_examples=60, deadline=None)
@given(
    names=st.sets(st.from_regex(r"[a-c]{1,3}[0-9]{1,3}", fullmatch=True), min_size=3, max_size=30),
    low=st.sampled_from(["_LR", "x4", "_x4", "-small", ""]),
    high=st.sampled_from(["_HR", "", "_GT"]),
)
def test_pairing_finds_all_partners(names, low, high):
    """Whatever the names, two markers that whole fields share leave no orphan, and partners stay together."""
    assume(low != high)
    files = {"lr": sorted(png(name + low for name in names)), "hr": sorted(png(name + high for name in names))}
    paired = pair(files)
    assert not any(paired.orphans.values())
    pairs = zip(paired.files["lr"], paired.files["hr"], strict=True)
    assert {(a.removesuffix(f"{low}.png"), b.removesuffix(f"{high}.png")) for a, b in pairs} == {(n, n) for n in names}


def test_what_came_off_is_said_by_field():
    """At either end, and whole folders; of scales the most frequent one."""
    low, high = (png(f"{form.format(n)}" for n in NUMBERS) for form in ("lr/img_{}_x2", "set/hr/img_{}"))
    paired = pair({"lr": [*low, "lr/img_9_x3.png"], "hr": [*high, "set/hr/img_9.png"]})
    assert paired.taken == {"lr": "the folder 'lr' and '_x2' at the end", "hr": "the folder 'set/hr'"}
    assert paired.names == [*(f"img_{n}" for n in NUMBERS[:9]), "img_9", *(f"img_{n}" for n in NUMBERS[9:])]


def test_one_letter_is_enough_of_a_name():
    """A name never becomes empty: `x4` of a file that is called so stays."""
    assert pair({"lr": png(["x4", "a_x4", "b_x4"]), "hr": png(["x4", "a", "b"])}).names == ["a", "b", "x4"]


def test_accents_of_macos_are_those_of_others():
    """Names in NFD and NFC are partners; names that have their partners stay as they are."""
    files = {"lr": ["Ka\u0308se.png", "b.png"], "hr": ["K\u00e4se.png", "b.png"]}
    paired = pair(files)
    assert paired.names == ["K\u00e4se", "b"]
    assert paired.files["lr"] == files["lr"]
    assert pair({"lr": files["lr"]}).names == ["Ka\u0308se", "b"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("dog 7.png", None),
        ("dog", "dog"),
        ("dog.png", "dog"),
        ("dog (480,480,3)", "dog"),
        ("dog 3", "dog"),
        ("dog.png mask.png", "dog"),
        ("big dog.png", "big dog"),
    ],
)
def test_a_line_of_a_list_is_never_another_sample(line: str, name: str | None) -> None:
    """Names with blanks are whole; what follows a name is not looked at."""
    assert entry_of(line, {"dog": "dog", "big dog": "big dog"}) == name
