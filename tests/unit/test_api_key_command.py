"""``hpresume api add-key``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpresume.api.keys import load_keys
from hpresume.cli.app import main


def test_a_key_is_made_and_its_secret_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    assert main(["api", "add-key", "alice", "--file", str(file)]) == 0
    [(key_id, secret)] = load_keys(file).items()
    out = capsys.readouterr().out
    assert key_id in out
    assert secret not in out


def test_a_name_that_is_taken_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    main(["api", "add-key", "alice", "--file", str(file)])
    capsys.readouterr()
    assert main(["api", "add-key", "alice", "--file", str(file)]) == 2
    assert "there is a key alice already" in capsys.readouterr().err
    assert main(["api", "add-key", "bob", "--file", str(tmp_path / "no" / "no" / "keys")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_what_else_is_in_the_file_stays_and_its_folder_is_made(tmp_path: Path) -> None:
    file = tmp_path / "hpresume" / "api-keys"
    assert main(["api", "add-key", "alice", "--file", str(file)]) == 0
    own = f"# the laptop of\n{file.read_text()}region = us-east-1  ; as at home"
    file.write_text(own)
    link = tmp_path / "keys"
    link.symlink_to(file)
    assert main(["api", "add-key", "bob", "--file", str(link)]) == 0
    assert link.is_symlink()
    assert file.read_text().startswith(f"{own}\n\n[bob]\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(load_keys(file)) == 2


@pytest.mark.parametrize("name", ["", "a]b", "a\nb", "#a"])
def test_a_bad_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["api", "add-key", name, "--file", str(tmp_path / "keys")]) == 2
    assert "letters" in capsys.readouterr().err
