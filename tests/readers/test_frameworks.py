"""Loaders and datasets in frameworks for training: the same samples in the same order as `Loader` alone.

MONAI, Kornia and others are shown by the pages of the book, whose blocks are run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environment import HAS_FRAMEWORKS
from PIL import Image
from ranks import call_in_ranks
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from packer.convert import convert
from packer.errors import UsageError
from packer.sources import SourceOptions
from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset, ResizedCrop
from readers.data_loader import Batch

pytestmark = [
    pytest.mark.skipif(not HAS_FRAMEWORKS, reason="the frameworks are not installed here"),
    pytest.mark.keeps_open,  # the frameworks hold on to loaders
    # What the frameworks themselves warn of.
    pytest.mark.filterwarnings("ignore"),
]

SAMPLES = 37


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 samples: three numbers `x`, the sample's own number `n`, and a cloud of n % 5 + 1 points."""
    folder = tmp_path_factory.mktemp("frameworks") / "packed"
    with DatasetWriter(folder) as writer:
        for number in range(SAMPLES):
            cloud = np.full((number % 5 + 1, 3), number, np.float32)
            writer.add({"cloud": cloud, "x": np.full(3, number, np.float32), "n": np.int64(number)})
    return folder


@pytest.fixture
def dataset(path: Path) -> PackedDataset:
    return PackedDataset(path, ["x", "n"])


def flat(lists: Any) -> list[int]:
    return [number for some in lists for number in some]


def numbers(batches: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in batches]


def alone(dataset: Any, epochs: int, size: int = 4, **options: Any) -> list[list[list[int]]]:
    """What `Loader` alone gives, by epoch."""
    loader = Loader(dataset, size, shuffle=True, seed=1, **options)
    return [numbers(loader) for _ in range(epochs)]


# ---------------------------------------------------------------- Lightning


def trainer(**options: Any) -> Any:
    import lightning

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(**{**quiet, "enable_checkpointing": False, **options})


def module() -> Any:
    """A module that notes the samples it is given, by epoch."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen: dict[int, list[list[int]]] = {}
            self.validated: list[list[int]] = []

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.setdefault(self.current_epoch, []).append(batch["n"].tolist())
            return self.layer(batch["x"]).mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated.append(batch["n"].tolist())
            self.log("count", float(len(batch["n"])), on_epoch=True, reduce_fx="sum")

        def test_step(self, batch: Any, number: int) -> None:
            self.validation_step(batch, number)

        def predict_step(self, batch: Any, number: int) -> Any:
            return batch["n"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    return Module()


def test_lightning_fits_in_the_order_of_the_loader(dataset: PackedDataset) -> None:
    """Every epoch of fit has the batches of the loader alone; validation reads all samples in their order."""
    model = module()
    trainer(max_epochs=3, num_sanity_val_steps=0).fit(
        model, Loader(dataset, 4, shuffle=True, seed=1), Loader(dataset, 8)
    )
    assert list(model.seen.values()) == alone(dataset, 3)
    assert model.validated == 3 * numbers(Loader(dataset, 8))


def test_lightning_validates_tests_and_predicts_every_sample_once(dataset: PackedDataset) -> None:
    """Each of the three gives every sample once, in order, a short last batch included."""
    wanted = numbers(Loader(dataset, 16))
    for run in ("validate", "test"):
        model = module()
        getattr(trainer(), run)(model, Loader(dataset, 16), verbose=False)
        assert model.validated == wanted
    assert [part.tolist() for part in trainer().predict(module(), Loader(dataset, 16))] == wanted


def test_lightning_resumes_in_the_middle_of_an_epoch(dataset: PackedDataset, tmp_path: Path) -> None:
    """From a checkpoint after step 13 of 10 an epoch, training goes on with the batches that were left, once each."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(tmp_path, every_n_train_steps=13, save_top_k=-1)
    first = module()
    trainer(max_epochs=3, enable_checkpointing=True, callbacks=[keep]).fit(first, loader_of(dataset))
    (saved,) = [p for p in tmp_path.glob("*.ckpt") if "step=13" in p.name]
    second = module()
    trainer(max_epochs=3).fit(second, loader_of(dataset), ckpt_path=saved, weights_only=False)
    assert second.seen == {1: alone(dataset, 3)[1][3:], 2: alone(dataset, 3)[2]}


def loader_of(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, 4, shuffle=True, seed=1, **options)


def test_lightning_finds_the_size_of_a_batch_with_clouds(path: Path) -> None:
    """The samples of a batch are counted, not the points of its clouds."""
    from lightning.pytorch.utilities.data import extract_batch_size

    batch = next(iter(Loader(PackedDataset(path), 4)))
    assert batch["cloud"].values.shape[0] != 4
    assert extract_batch_size(batch) == 4


# ---------------------------------------------------------------- Accelerate


def accelerator(**options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return Accelerator(cpu=True, **options)


def test_accelerate_prepares_a_loader(dataset: PackedDataset) -> None:
    """A prepared loader is registered, gives the loader's batches epoch by epoch, and knows the end of each."""
    accelerate = accelerator()
    prepared = accelerate.prepare(loader_of(dataset))
    assert accelerate._dataloaders == [prepared]
    assert len(prepared) == 10
    for wanted in alone(dataset, 3):
        ends = [(batch["n"].tolist(), prepared.end_of_dataloader) for batch in prepared]
        assert [found for found, _ in ends] == wanted
        assert [end for _, end in ends] == 9 * [False] + [True]


@pytest.mark.parametrize("prepare", [True, False])
def test_accelerate_skips_the_first_batches(dataset: PackedDataset, prepare: bool) -> None:
    """skip_first_batches leaves the rest of the epoch, of a loader that is prepared and of one that is not."""
    accelerate = accelerator()
    loader = accelerate.prepare(loader_of(dataset)) if prepare else loader_of(dataset)
    assert numbers(accelerate.skip_first_batches(loader, 6)) == alone(dataset, 1)[0][6:]


@pytest.mark.parametrize("way", ["registered", "stateful"])
def test_accelerate_saves_and_loads_where_a_loader_stands(dataset: PackedDataset, tmp_path: Path, way: str) -> None:
    """In the middle of the second epoch, load_state goes on with the batches that were left: of a Loader that was
    registered, or of a stateful loader made from it, which is told the epoch."""
    from accelerate import DataLoaderConfiguration

    def made() -> tuple[Any, Any]:
        accelerate = accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=way == "stateful"))
        loader = loader_of(dataset)
        if way == "stateful":
            return accelerate, accelerate.prepare(loader)
        accelerate.register_for_checkpointing(loader)
        return accelerate, loader

    accelerate, loader = made()
    numbers(loader)
    for step, _ in enumerate(loader):
        if step == 3:
            accelerate.save_state(tmp_path / "state")
            break
    accelerate, loader = made()
    accelerate.load_state(tmp_path / "state")
    if way == "stateful":
        loader.set_epoch(1)
    assert [numbers(loader), numbers(loader)] == [alone(dataset, 2)[1][4:], alone(dataset, 3)[2]]


# ---------------------------------------------------------------- two processes


@pytest.fixture(scope="module")
def given_to_ranks(path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks of gloo is given by Lightning and by Accelerate."""
    folder = tmp_path_factory.mktemp("ranks")
    call_in_ranks(2, "frameworks_on_ranks", "train", str(path), str(folder), trains=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_lightning_on_two_ranks(dataset: PackedDataset, given_to_ranks: list[Any]) -> None:
    """Each rank has its share of the loader's order, also of a loader made before the ranks knew of one another.

    It takes 7 s: a process imports Lightning, and two ranks find each other.
    """
    given = [rank["lightning"] for rank in given_to_ranks]
    for rank in (0, 1):
        assert given[rank]["train"] == alone(dataset, 2, rank=rank, world_size=2)
        assert given[rank]["validate"] == 2 * numbers(Loader(dataset, 8, rank=rank, world_size=2))
    predicted = sorted(flat(given[0]["predict"] + given[1]["predict"]))
    assert set(predicted) == set(range(SAMPLES))
    assert len(predicted) <= SAMPLES + 1


def test_accelerate_on_two_ranks(dataset: PackedDataset, given_to_ranks: list[Any]) -> None:
    """Ranks take the loader's batches in turn; gather_for_metrics gives every sample once, in order."""
    given = [rank["accelerate"] for rank in given_to_ranks]
    for epoch, wanted in enumerate(alone(dataset, 2)):
        for rank in (0, 1):
            assert given[rank]["train"][epoch][:4] == wanted[rank:8:2]
        assert {n for rank in given for batch in rank["train"][epoch] for n in batch} == set(range(SAMPLES))
    assert given[0]["validate"] == given[1]["validate"] == list(range(SAMPLES))


# ---------------------------------------------------------------- others


def test_a_stateful_loader_of_torchdata_resumes(dataset: PackedDataset) -> None:
    """StatefulDataLoader over the dataset goes on with the batches that were left, with workers and without."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    for workers in (0, 2):

        def make(workers: int = workers) -> Any:
            torch.manual_seed(7)
            return StatefulDataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)

        whole = numbers(make())
        loader = make()
        batches = iter(loader)
        begun = numbers(next(batches) for _ in range(3))
        state = loader.state_dict()
        del batches
        loader = make()
        loader.load_state_dict(state)
        assert begun + numbers(loader) == whole


def test_a_sum_of_datasets_is_read_in_whole_batches(path: Path, dataset: PackedDataset, tmp_path: Path) -> None:
    """One dataset after another, also the same one twice; what cannot be mixed is read as torch does it."""
    both = dataset + PackedDataset(path, ["x", "n"]) + dataset
    assert isinstance(both, Mix)
    batches = list(DataLoader(both, batch_size=10, num_workers=1))
    assert flat(numbers(batches)) == 3 * list(range(SAMPLES))
    assert isinstance(both.__getitems__([0, SAMPLES]), Batch)
    assert [int(both[number]["n"]) for number in (SAMPLES + 3, -1)] == [3, SAMPLES - 1]
    assert sorted(flat(numbers(Loader(both, 10, shuffle=True)))) == sorted(3 * list(range(SAMPLES)))
    with DatasetWriter(tmp_path / "other") as writer:
        writer.add({"n": np.int64(5)})
    for other in (PackedDataset(tmp_path / "other"), PackedDataset(path, batch_transform=dict), [{"n": 5}]):
        joined = dataset + other  # type: ignore[operator]
        assert isinstance(joined, ConcatDataset)
        assert len(joined) == SAMPLES + len(other)
        assert joined[SAMPLES]["n"] == other[0]["n"]
    weighted = Mix({dataset: 1}, extras=("dataset",))
    assert isinstance(weighted + PackedDataset(path), ConcatDataset)


def test_the_trainer_of_transformers(dataset: PackedDataset, tmp_path: Path) -> None:
    """HF Trainer predicts every sample of a dataset, and trains on it; by a Loader it trains in its order, and goes on
    in the middle of an epoch, whether that is prepared, or within an IterableDataset."""
    from transformers import Trainer, TrainingArguments, default_data_collator

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen: list[list[int]] = []

        def forward(self, x: Any, n: Any) -> Any:
            self.seen.append(n.tolist())
            return {"loss": self.layer(x).mean(), "n": n}

    class Prepared(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(loader_of(self.train_dataset))

    class Unprepared(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader_of(self.train_dataset)

    class Batches(IterableDataset[Any]):
        def __init__(self) -> None:
            self.loader = loader_of(dataset)
            self.set_epoch = self.loader.set_epoch

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.loader)

    def trained(make: Any, train: Any, size: int, collator: Any, resume: bool = False) -> tuple[Any, list[list[int]]]:
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=size, per_device_eval_batch_size=8, num_train_epochs=2,
            use_cpu=True, report_to=[], save_strategy="steps", save_steps=13, disable_tqdm=True,
            remove_unused_columns=False, logging_strategy="no",
        )  # fmt: skip
        model = Model()
        run = make(model, arguments, train_dataset=train, data_collator=collator)
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-13") if resume else None)
        return run, model.seen

    for collator in (default_data_collator, default_collate):
        run, seen = trained(Trainer, dataset, 8, collator)
        assert [sorted(flat(epoch)) for epoch in (seen[:5], seen[5:])] == 2 * [list(range(SAMPLES))]
        assert run.predict(dataset).predictions[-1].tolist() == list(range(SAMPLES))
    batches = [batch for epoch in alone(dataset, 2) for batch in epoch]
    by_loader = (
        (Prepared, dataset, 4, None),
        (Unprepared, dataset, 4, None),
        (Trainer, Batches(), 1, lambda items: items[0]),
    )
    for arguments in by_loader:
        assert trained(*arguments)[1] == batches
        assert trained(*arguments, resume=True)[1] == batches[13:]


def test_ignite_goes_on_in_the_middle_of_an_epoch(path: Path) -> None:
    """With the states of its engine and of the loader: the same batches as without a stop."""
    from ignite.engine import Engine, Events

    def made() -> tuple[Loader, Any, list[list[int]]]:
        seen: list[list[int]] = []
        loader = Loader(PackedDataset(path, ["x", "n"]), 4, shuffle=True, seed=1)
        return loader, Engine(lambda engine, batch: seen.append(batch["n"].tolist())), seen

    loader, engine, stopped = made()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=13), lambda: engine.terminate())
    engine.run(loader, max_epochs=3)
    states = engine.state_dict(), loader.state_dict()
    loader, engine, resumed = made()
    engine.load_state_dict(states[0])
    loader.load_state_dict(states[1])
    engine.run(loader, max_epochs=3)
    assert [len(stopped), len(resumed)] == [13, 17]
    assert stopped + resumed == [batch for epoch in alone(PackedDataset(path), 3) for batch in epoch]


def test_a_loader_in_a_distributed_checkpoint(dataset: PackedDataset, tmp_path: Path) -> None:
    """torch.distributed.checkpoint, which torchtitan saves by, takes a Loader as it is, and loads it in its place."""
    from torch.distributed import checkpoint

    loader, resumed = loader_of(dataset), loader_of(dataset)
    numbers(loader)
    for step, _ in enumerate(loader):
        if step == 3:
            checkpoint.save({"loader": loader, "step": 14}, checkpoint_id=tmp_path)
    checkpoint.load({"loader": resumed}, checkpoint_id=tmp_path)
    assert [numbers(resumed), numbers(resumed)] == [alone(dataset, 2)[1][4:], alone(dataset, 3)[2]]


def arrays(sample: dict[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.numpy() for name, value in sample.items()}


@pytest.mark.parametrize("way", ["samples", "numbers", "DataLoader"])
def test_grain_reads_a_dataset(path: Path, way: str) -> None:
    """Sample by sample, by batches of numbers or in its DataLoader: it shuffles, and goes on at a state."""
    import grain

    dataset = PackedDataset(path, ["x", "n"])

    class Read(grain.transforms.Map):
        def map(self, numbers: Any) -> Any:
            return arrays(dataset[numbers])

    if way == "samples":
        shuffled = grain.MapDataset.source(PackedDataset(path, ["x", "n"], sample_transform=arrays)).shuffle(seed=3)
        batches = shuffled.batch(5).to_iter_dataset(grain.ReadOptions(num_threads=2))
    elif way == "numbers":
        shuffled = grain.MapDataset.range(SAMPLES).shuffle(seed=3)
        batches = shuffled.batch(5).map(Read()).to_iter_dataset(grain.ReadOptions(num_threads=2))
    else:
        sampler = grain.samplers.IndexSampler(SAMPLES, shuffle=True, seed=3, num_epochs=1)
        operations = [grain.transforms.Batch(5), Read()]
        batches = grain.DataLoader(data_source=range(SAMPLES), sampler=sampler, operations=operations)
    begun = iter(batches)
    first = [next(begun) for _ in range(3)]
    state = begun.get_state()
    rest = list(begun)
    assert not [batch for batch in first + rest if not (batch["x"] == batch["n"][:, None]).all()]
    order = flat(numbers(first + rest))
    assert sorted(order) == list(range(SAMPLES)) != order
    resumed = iter(batches)
    resumed.set_state(state)
    assert numbers(resumed) == numbers(rest)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_nodes_of_torchdata_read_whole_batches(dataset: PackedDataset, name: str) -> None:
    """In the order of a Loader, epoch by epoch, by threads; and they go on at their state in the middle of an epoch."""
    from torchdata import nodes

    def made() -> Any:
        node: Any = nodes.SamplerWrapper(getattr(loader_of(dataset), name))
        if name == "sampler":
            node = nodes.Batcher(node, 4, drop_last=False)
        return nodes.Loader(nodes.ParallelMapper(node, dataset.__getitem__, num_workers=2, method="thread"))

    loader = made()
    assert numbers(loader) == alone(dataset, 1)[0]
    for step, _ in enumerate(loader):
        if step == 3:
            state = loader.state_dict()
            break
    resumed = made()
    resumed.load_state_dict(state)
    assert [numbers(resumed), numbers(resumed)] == [alone(dataset, 2)[1][4:], alone(dataset, 3)[2]]


def test_clouds_for_pytorch_geometric(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `Batch` takes values, `batch_index` and `ptr`; its `Data`, made of samples, are joined as it joins them."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader as ItsLoader

    def data(sample: Any) -> Any:
        return Data(pos=sample["cloud"], n=sample["n"])

    clouds = PackedDataset(path)[:8]["cloud"]
    ds = PackedDataset(path, sample_transform=data)
    wanted = Batch.from_data_list([ds[number] for number in range(8)])
    monkeypatch.setitem(default_collate_fn_map, Data, lambda samples, **_: Batch.from_data_list(samples))
    of_clouds = Batch(pos=clouds.values, n=wanted.n, batch=clouds.batch_index(), ptr=clouds.ptr)
    for found in (of_clouds, *(next(iter(make(ds, 8))) for make in (Loader, DataLoader, ItsLoader))):
        assert not [key for key in ("pos", "n", "batch", "ptr") if not torch.equal(found[key], wanted[key])]
        assert found.batch_size == wanted.batch_size == clouds.batch_size


# ---------------------------------------------------------------- photographs


CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes of eight JPEG files of 40 x 48 pixels, some progressive, and next to it `packed`."""
    from jpeg_files import as_jpeg, photograph  # not where the scripts of ranks import this module

    place = tmp_path_factory.mktemp("photographs")
    for number in range(24):
        file = place / "files" / CLASSES[number % 3] / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(as_jpeg(photograph(40, 48, number), progressive=number % 5 == 0))
    convert(str(place / "files"), place / "packed", source=SourceOptions(label="folder"), workers=0)
    return place


class ImageFolder(Dataset[Any]):
    """The files of folders of classes, as torchvision's `ImageFolder` reads them."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(entry.name for entry in folder.iterdir())
        self.files = [(file, n) for n, name in enumerate(self.classes) for file in sorted((folder / name).iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        file, label = self.files[number]
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous(), label


def losses(batches: Any) -> list[float]:
    """The losses of an epoch of a small network with dropout, whose crops are drawn by torch's generator."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Dropout(), torch.nn.Linear(4, len(CLASSES)),
    )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for images, labels in batches:
        top, left = torch.randint(8, (2,)).tolist()
        loss = torch.nn.functional.cross_entropy(model(images[..., top : top + 32, left : left + 32] / 255), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("threads", [0, 2])
def test_losses_are_those_of_an_image_folder(photographs: Path, threads: int) -> None:
    """On packed JPEG files, in the same order and with the same draws, every loss of an epoch is the same float."""
    packed = PackedDataset(photographs / "packed")
    assert [config["id"] for config in packed.fields["image"].codec] == ["jpeg"]
    loader = Loader(packed, 4, shuffle=True, seed=1, threads=threads, channels_last=False)
    files = ImageFolder(photographs / "files")
    assert packed.classes == files.classes
    wanted = losses(DataLoader(files, 4, sampler=list(loader.sampler), generator=torch.Generator()))
    found = losses((batch["image"], batch["label"]) for batch in loader)
    assert found == wanted
    assert len(set(found)) == 6


def test_a_vision_transformer_learns_from_resized_crops(photographs: Path) -> None:
    """HF's ViT takes a batch of `ResizedCrop` and its labels as they are, and every weight has a gradient."""
    from transformers import ViTConfig, ViTForImageClassification

    tiny: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ViTForImageClassification(ViTConfig(**tiny, image_size=32, num_labels=len(CLASSES)))
    dataset = PackedDataset(photographs / "packed", crop=ResizedCrop(32, of="image"))
    for batch in Loader(dataset, 8, shuffle=True):
        found = model(batch["image"] / 127.5 - 1, labels=batch["label"])
        assert found.logits.shape == (8, len(CLASSES))
        found.loss.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


# ---------------------------------------------------------------- what the loader has for them


def test_a_loader_is_a_data_loader_to_those_who_ask(dataset: PackedDataset) -> None:
    """The attributes of torch's DataLoader say how it reads; its samplers give this rank's order, and that of all."""
    loader = Loader(dataset, 4, shuffle=True, seed=1, drop_last=True, rank=1, world_size=2)
    assert isinstance(loader, DataLoader)
    assert (loader.dataset, loader.batch_size, loader.num_workers, loader.drop_last) == (dataset, 4, 0, True)
    assert (loader.pin_memory, loader.generator, loader.worker_init_fn) == (False, None, None)
    loader.sampler.set_epoch(3)
    assert loader.epoch == 3
    mine = list(loader.sampler)
    assert len(mine) == len(loader.sampler) == 16
    assert flat(numbers(loader)) == mine
    loader.set_epoch(3)
    of_all = Loader(dataset, 4, shuffle=True, seed=1, drop_last=True)
    of_all.set_epoch(3)
    assert list(loader.batch_sampler) == numbers(of_all)


def test_batches_are_read_as_a_sampler_gives_them(dataset: PackedDataset) -> None:
    """With batch_sampler, batches are of any sizes, in its order, and a state goes on with those that were left."""
    batches = [[3, 1], [4, 1], [5, 9, 2], [6], [7]]
    for threads in (0, 2):
        loader = Loader(dataset, batch_sampler=batches, threads=threads)
        assert len(loader) == 5
        assert [numbers(loader) for _ in range(2)] == [batches, batches]
        part = iter(loader)
        begun = numbers(next(part) for _ in range(3))
        other = Loader(dataset, batch_sampler=batches)
        other.load_state_dict(loader.state_dict())
        assert begun + numbers(other) == batches


def test_random_batches_follow_from_seed_and_epoch(dataset: PackedDataset) -> None:
    """A random BatchSampler gives the same batches for the same seed and epoch, whatever torch's seed is."""
    from torch.utils.data import BatchSampler, RandomSampler

    def epochs() -> list[list[list[int]]]:
        loader = Loader(dataset, batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 5, False), seed=2)
        return [numbers(loader) for _ in range(2)]

    torch.manual_seed(0)
    first = epochs()
    torch.manual_seed(1)
    assert epochs() == first
    assert first[0] != first[1]
    assert sorted(flat(first[0])) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sampler": [[1]], "batch_size": 4}, "leave out batch_size"),
        ({"batch_sampler": [[1]], "sampler": np.arange(3)}, "leave out batch_size"),
        ({"batch_sampler": [[1], [SAMPLES]]}, "number 37, outside of the 37"),
        ({"batch_sampler": [[]]}, "an empty batch"),
        ({"batch_sampler": [1, 2]}, "sample numbers are expected"),
    ],
)
def test_batches_that_cannot_be_are_refused(dataset: PackedDataset, options: dict[str, Any], message: str) -> None:
    """Arguments that contradict a sampler of batches, and batches of what is no sample, are named."""
    with pytest.raises(UsageError, match=message):
        list(Loader(dataset, **options))
