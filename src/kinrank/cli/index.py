"""`kinrank index`: a folder of pictures into a gallery."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinrank.cli.output import json_option, print_json
from kinrank.errors import InputError

if TYPE_CHECKING:
    from kinrank.features.backbones.base import Backbone
    from kinrank.features.extract import Report
    from kinrank.gallery.gallery import Gallery


@click.command("index")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-g", "--gallery", "location", metavar="GALLERY", help="Made when not there.")
@click.option("--backbone", metavar="NAME", help="See `kinrank list backbones`; or a file, path.onnx.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Pictures a commit.")
@click.option("--prune", is_flag=True, help="Remove pictures whose files have vanished from the folder.")
@click.option("--local", is_flag=True, help="Local features too, for ransac and spatial (extra 'local').")
@click.option("--dsm", is_flag=True, help="Regions of the network's maps too, for the method dsm.")
@click.option("--dataset", is_flag=True, help="FOLDER is a data set: write its features into it instead.")
@click.option("--split", type=click.Choice(("test", "train")), default="test", help="Of the data set.")
@click.option("--size", type=click.IntRange(min=32), default=1024, show_default=True, help="Of its pictures.")
@click.option("--whitening", metavar="FILE", help="An .npz to whiten the data set's features with.")
@click.option("--max-pixels", type=click.IntRange(min=1), help="Limit against decompression bombs.")
@json_option
def command(
    folder: Path,
    location: str | None,
    backbone: str | None,
    batch: int,
    prune: bool,
    local: bool,
    dsm: bool,
    dataset: bool,
    split: str,
    size: int,
    whitening: str | None,
    max_pixels: int | None,
    as_json: bool,
) -> None:
    """Index the pictures of FOLDER: decode, embed, keep.

    Run again it goes on where it stopped and takes in what is new or replaced; each picture's id is its path
    relative to FOLDER. With --dataset no gallery is made: the pictures of a data set are described as the
    papers do it (1024 pixels, three scales, queries cropped), for `kinrank evaluate FOLDER`.
    """
    from kinrank.features.images import MAX_PIXELS, allow_pixels

    if not folder.is_dir():
        raise InputError(
            f"the folder '{folder}' {'is not a folder' if folder.exists() else 'does not exist'}"
        )
    if max_pixels is not None:
        allow_pixels(max_pixels)
    if dataset:
        _dataset(folder, backbone, split, size, whitening, as_json)
        return
    if location is None:
        raise InputError("say which gallery the pictures go into: -g GALLERY")
    with _opened(location, backbone) as (network, gallery):
        try:
            report = _run(folder, gallery, network, batch, prune, max_pixels or MAX_PIXELS)
            for kind, wanted in (("rootsift", local), ("dsm", dsm)):
                if wanted:
                    _local_features(report, gallery, kind)
        except KeyboardInterrupt:
            click.echo(
                f"\nkinrank: interrupted; {len(gallery)} pictures are in the gallery, "
                "the same command goes on from there",
                err=True,
            )
            sys.exit(130)
        result = {
            "gallery": location,
            "backbone": gallery.backbone,
            "size": len(gallery),
            **report.to_dict(),
        }
    _tell(result, as_json)
    if report.found + len(report.failed) == 0:
        raise InputError(f"there is no picture in '{folder}'")
    if report.failed and report.embedded + report.copied + report.unchanged == 0:
        sys.exit(1)


@contextmanager
def _opened(location: str, name: str | None) -> Iterator[tuple[Backbone, Gallery]]:
    """The backbone, by default the one of the gallery, and the gallery, made when there is none."""
    from kinrank.features.backbones import DEFAULT
    from kinrank.features.backbones.base import open_backbone, open_for
    from kinrank.gallery.gallery import Gallery

    network = None
    if "://" in location or os.path.exists(location):
        gallery = Gallery.open(location)
    else:
        network = open_backbone(name or DEFAULT)
        gallery = Gallery.create(location, dim=network.dim, backbone=network.identity)
    with gallery:
        if network is None:
            new = gallery.backbone is None and len(gallery) == 0
            network = open_for(gallery, name or (DEFAULT if new else None))
        how = getattr(network, "how", None)
        if how is not None:
            click.echo(f"kinrank: {how}", err=True)
        yield network, gallery


def _run(
    folder: Path, gallery: Gallery, network: Backbone, batch: int, prune: bool, max_pixels: int
) -> Report:
    from tqdm import tqdm

    from kinrank.features.extract import index_folder

    with tqdm(desc="indexing", unit="image", file=sys.stderr, dynamic_ncols=True) as bar:
        return index_folder(
            folder,
            gallery,
            network,
            batch=batch,
            prune=prune,
            max_pixels=max_pixels,
            begin=bar.reset,
            progress=bar.update,
        )


def _dataset(
    folder: Path, backbone: str | None, split: str, size: int, whitening: str | None, as_json: bool
) -> None:
    from kinrank.evaluation.extract import extract
    from kinrank.features.backbones import DEFAULT
    from kinrank.features.backbones.base import open_backbone
    from kinrank.features.whitening import Whitening

    network = open_backbone(backbone or DEFAULT)
    white = Whitening.load(whitening) if whitening else None
    try:
        target = extract(folder, network, split, size, white, progress=True)
    except KeyboardInterrupt:
        click.echo("\nkinrank: interrupted; the same command goes on from there", err=True)
        sys.exit(130)
    if as_json:
        print_json({"features": str(target), "backbone": network.identity})
    else:
        click.echo(f"{target}: features of {folder} by {network.name}")


def _local_features(report: Report, gallery: Gallery, kind: str) -> None:
    from kinrank.features.images import Failure
    from kinrank.features.local import companion, extract_local

    ids = gallery.ids()
    files = [
        (key, entry["path"]) for key, entry in zip(ids.tolist(), gallery.metadata(ids)) if "path" in entry
    ]
    settings = {"model": (gallery.backbone or "").rpartition("#")[0]} if kind == "dsm" else {}
    made = extract_local(files, companion(gallery.location, kind), kind, progress=True, **settings)
    known = {failure.path for failure in report.failed}
    report.failed += [Failure(path, reason) for path, reason in made.unreadable if path not in known]


def _tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        done = result["embedded"]
        rate = f" ({done / result['seconds']:.1f} a second)" if done and result["seconds"] > 0 else ""
        click.echo(
            f"{result['gallery']}: {result['size']} pictures; {done} embedded{rate}, of these "
            f"{result['replaced']} replaced; {result['copied']} copies, {result['unchanged']} unchanged, "
            f"{len(result['vanished'])} vanished ({result['pruned']} removed), "
            f"{len(result['failed'])} unreadable"
        )
    if result["vanished"] and not result["pruned"]:
        click.echo("no longer in the folder (cure: --prune removes them):", err=True)
        for key in result["vanished"]:
            click.echo(f"  {key}", err=True)
    if result["failed"]:
        click.echo("could not be read:", err=True)
        for failure in result["failed"]:
            click.echo(f"  {failure['path']}: {failure['reason']}", err=True)
