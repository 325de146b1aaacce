"""NIST's questions on the page, and the draft for the registry of deployments."""

from __future__ import annotations

import json

import pytest

from dpsinkhorn.cli import main
from dpsinkhorn.report import ReportError, gather, registry_entry, write_report
from dpsinkhorn.report.findings import Findings
from dpsinkhorn.report.standards import sp_800_226
from support.html import read_page, rows
from support.releases import statement, write_small_release
from support.runs import finished, small_plan, tiny_data, tiny_plan

# The fields of schemas/deployments-schema.yaml, by section, and those that have fixed words.
FIELDS = {
    "basic": "name data_curators description intended_use data_product_type data_product_region "
    "data_product_sector publication_date",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters "
    "privacy_parameters_details",
    "deployment_model": "model_name model_name_details trust_assumptions actors release_type "
    "release_type_details data_source_type data_source_type_details access_type access_type_details",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms composition post_processing "
    "justification utility additional_information",
    "administrative": "evidence_sources status registry_authors tier",
}
WORDS = {
    "data_product_type": {"Summary statistics", "Machine learning model", "Dataset", "Synthetic data"},
    "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
    "status": {"Draft"},
}


@pytest.fixture(scope="module", params=["record", "person"])
def run(request, tmp_path_factory):
    data = tiny_data(records=120, persons=20 if request.param == "person" else None)
    return finished(tmp_path_factory.mktemp("place") / "run", tiny_plan(data, seed=None), data), request.param


class TestNist:
    @pytest.mark.parametrize(
        ("mechanism", "how"), [("record", "By clipping,"), ("datalens", "By counting votes,")]
    )
    def test_what_bounds_the_sensitivity(self, mechanism, how):
        found = Findings(statement(), None, plan=small_plan(tiny_data(), mechanism))
        (answer,) = [point.answer for point in sp_800_226(found) if point.asked == "3.1 Sensitivity"]
        assert answer.startswith(how)
        assert ("setting clip 2," in answer) is (mechanism == "record")

    def test_every_block_of_the_pyramid_is_on_the_page(self, run):
        page = read_page(write_report(run[0].folder).report.read_bytes())
        points = [
            row for part in ("guarantee", "algorithm", "deployment") for row in rows(page, f"The {part}")
        ]
        asked = " ".join(point[0] for point in points).lower()
        for block in (
            *("ε", "unit of privacy", "correctness", "utility", "bias", "query model", "threat model"),
            *("side channels", "security", "access", "data collection exposure"),
            *("variant", "comparing", "other releases", "sensitivity", "floating point", "tuning"),
        ):
            assert block in asked, block
        assert all(cell for point in points for cell in point)

    def test_what_it_says_is_of_this_run(self, run):
        found = gather(run[0].folder)
        points = {point.asked: point for point in sp_800_226(found)}
        unit = points["2.4 Unit of privacy"]
        assert ("clipped as a whole" in unit.answer) == (run[1] == "person")
        assert ("How many records a person has" in unit.missing) == (run[1] == "record")
        units = {"record": 120, "person": 20}[run[1]]
        assert f"n = {units} it is {1e-5 * units:.2g} times 1/n" in points["2.3 Variant, and δ"].answer
        assert points["4.5 Data collection exposure"].answer == "Not stated."

    def test_not_of_a_training_without_privacy(self, tmp_path):
        data = tiny_data()
        folder = finished(tmp_path / "run", tiny_plan(data, "none", seed=None), data).folder
        assert 'id="nist"' not in write_report(folder).report.read_text()


class TestRegistry:
    def test_fields_are_those_of_the_schema(self, run):
        entry = registry_entry(gather(run[0].folder))
        assert entry.keys() == {"url_slug", "deployment"}
        assert entry["deployment"].keys() == FIELDS.keys()
        for section, values in entry["deployment"].items():
            assert values.keys() <= set(FIELDS[section].split())
            for name in values.keys() & WORDS.keys():
                assert values[name] in WORDS[name]
        loss = entry["deployment"]["privacy_loss"]
        privacy = gather(run[0].folder).privacy
        assert loss["privacy_parameters"] == {"epsilon": privacy.epsilon, "delta": privacy.delta}
        assert entry["deployment"]["implementation"]["preprocessing_and_hyperparameter_tuning"]
        assert loss["privacy_unit"].lower() == f"{run[1]}-level"
        assert loss["number_of_privacy_units"] == (120 if run[1] == "record" else 20)

    def test_command(self, run, tmp_path, capsys):
        target = tmp_path / "d.json"
        with pytest.raises(SystemExit):
            main(["export", str(run[0].folder), "--format", "registry", "--output", str(target)])
        assert "Fill in what is empty" in capsys.readouterr().out
        assert json.loads(target.read_text(encoding="utf-8")) == registry_entry(gather(run[0].folder))

    def test_of_a_release_alone(self, tmp_path):
        write_small_release(tmp_path / "r")
        entry = registry_entry(gather(tmp_path / "r"))["deployment"]
        assert entry["basic"]["name"] == "Small digits"
        assert "number_of_privacy_units" not in entry["privacy_loss"]

    def test_what_must_not_leave_is_not_registered(self, tmp_path):
        write_small_release(tmp_path / "r", privacy=statement(), releasable=False)
        with pytest.raises(ReportError, match="may be passed on"):
            registry_entry(gather(tmp_path / "r"))
