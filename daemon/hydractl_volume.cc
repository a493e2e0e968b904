// SPDX-License-Identifier: Apache-2.0
//
// hydractl volume create|list|show|resize|delete
#include <algorithm>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

struct VolumeArguments {
  VolumeSpec spec;
  std::string name;
  uint64_t bytes = 0;
  bool yes = false;
  bool force = false;
  bool quiet = false;
  bool target = false;
  bool no_target = false;
};

Json ToJson(const VolumeInfo& volume) {
  return {{"name", volume.name},
          {"id", volume.id},
          {"bytes", volume.bytes},
          {"block_bytes", volume.block_bytes},
          {"logical_block", volume.logical_block},
          {"shards", volume.groups.size()},
          {"groups", volume.groups},
          {"replicas", volume.replicas},
          {"active", volume.active},
          {"offered", volume.target.offered}};
}

Result<VolumeInfo> Find(Cluster* cluster, const std::string& name) {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<VolumeInfo> volumes, cluster->volumes());
  for (const VolumeInfo& volume : volumes) {
    if (volume.name == name) return volume;
  }
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl volume list` shows what there is", name));
}

// What a change left behind, as one line or one object.
int Show(const Context& context, Cluster* cluster, const std::string& name, const char* what) {
  const Result<VolumeInfo> volume = Find(cluster, name);
  if (!volume.ok()) return context.Fail(volume.status());
  if (context.json) {
    Print(ToJson(*volume));
  } else {
    const std::string logical =
        volume->logical_block == 512
            ? ""
            : fmt::format(", logical blocks of {}", BytesText(volume->logical_block));
    std::cout << fmt::format("{} {}: {} in {} shard{}, blocks of {}{}\n", what, volume->name,
                             BytesText(volume->bytes), volume->groups.size(),
                             volume->groups.size() == 1 ? "" : "s", BytesText(volume->block_bytes),
                             logical);
  }
  return kExitOk;
}

int Create(const Context& context, const VolumeArguments& arguments) {
  VolumeSpec spec = arguments.spec;
  spec.target = !arguments.no_target;
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Status created = cluster->CreateVolume(spec);
  if (!created.ok()) return context.Fail(created);
  if (!arguments.target) return Show(context, &*cluster, spec.name, "created");
  if (!context.json) {
    const int shown = Show(context, &*cluster, spec.name, "created");
    return shown == kExitOk ? ShowTarget(context, &*cluster, spec.name) : shown;
  }
  const Result<VolumeInfo> volume = Find(&*cluster, spec.name);
  const Result<Json> target = TargetJson(&*cluster, spec.name);
  if (!volume.ok()) return context.Fail(volume.status());
  if (!target.ok()) return context.Fail(target.status());
  Json json = ToJson(*volume);
  json["target"] = *target;
  Print(json);
  return kExitOk;
}

int List(const Context& context, bool quiet) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<std::vector<VolumeInfo>> volumes = cluster->volumes();
  if (!volumes.ok()) return context.Fail(volumes.status());
  if (context.json) {
    Json list = Json::array();
    for (const VolumeInfo& volume : *volumes) list.push_back(ToJson(volume));
    Print(list);
    return kExitOk;
  }
  if (quiet) {
    for (const VolumeInfo& volume : *volumes) std::cout << volume.name << "\n";
    return kExitOk;
  }
  if (volumes->empty()) {
    std::cout << "no volumes; make one with: hydractl volume create NAME --size 1G\n";
    return kExitOk;
  }
  Table table({"NAME", "SIZE", "BLOCK", "LOGICAL", "SHARDS", "STATE"});
  for (const VolumeInfo& volume : *volumes) {
    table.Add({volume.name, BytesText(volume.bytes), BytesText(volume.block_bytes),
               BytesText(volume.logical_block), std::to_string(volume.groups.size()),
               volume.active ? "active" : "changing"});
  }
  table.Print();
  return kExitOk;
}

// The volume, and who serves each of its shards.
int ShowAll(const Context& context, const std::string& name) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<VolumeInfo> volume = Find(&*cluster, name);
  if (!volume.ok()) return context.Fail(volume.status());
  const Result<std::vector<NodeInfo>> nodes = cluster->GetStatus(true);
  if (!nodes.ok()) return context.Fail(nodes.status());
  uint64_t stored = 0;
  Table table({"SHARD", "GROUP", "MASTER", "REPLICAS", "DATA"});
  Json shards = Json::array();
  for (size_t shard = 0; shard < volume->groups.size(); ++shard) {
    const uint32_t group = volume->groups[shard];
    uint32_t master = 0;
    uint64_t blocks = 0;
    std::vector<uint32_t> on;
    for (const NodeInfo& node : *nodes) {
      for (const ReplicaInfo& replica : node.replicas) {
        if (replica.group != group) continue;
        on.push_back(node.node);
        blocks = std::max(blocks, replica.data_blocks);
        if (replica.role == "master" && replica.ready) master = node.node;
      }
    }
    const uint64_t bytes = blocks * volume->block_bytes;
    stored += bytes;
    shards.push_back({{"shard", shard},
                      {"group", group},
                      {"master", master},
                      {"replicas", on},
                      {"data_bytes", bytes}});
    table.Add({std::to_string(shard), std::to_string(group),
               master == 0 ? "none" : std::to_string(master), fmt::format("{}", fmt::join(on, " ")),
               BytesText(bytes)});
  }
  if (context.json) {
    Json json = ToJson(*volume);
    json["data_bytes"] = stored;
    json["shard_list"] = shards;
    Print(json);
    return kExitOk;
  }
  std::cout << fmt::format(
      "{}: {} ({} bytes), blocks of {}, logical blocks of {}, {} of data in each "
      "replica{}\n",
      volume->name, BytesText(volume->bytes), volume->bytes, BytesText(volume->block_bytes),
      BytesText(volume->logical_block), BytesText(stored), volume->active ? "" : ", being changed");
  table.Print();
  return kExitOk;
}

int Resize(const Context& context, const VolumeArguments& arguments) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<VolumeInfo> volume = Find(&*cluster, arguments.name);
  if (!volume.ok()) return context.Fail(volume.status());
  const bool confirmed = arguments.yes || arguments.force;
  if (arguments.bytes < volume->bytes && !confirmed) {
    return context.Fail(Status::InvalidArgument(fmt::format(
        "making '{}' smaller, from {} to {}, destroys what lies behind the new end; add --force if "
        "that is meant",
        arguments.name, BytesText(volume->bytes), BytesText(arguments.bytes))));
  }
  const Status resized = cluster->ResizeVolume(arguments.name, arguments.bytes, confirmed);
  if (!resized.ok()) return context.Fail(resized);
  return Show(context, &*cluster, arguments.name, "resized");
}

int Delete(const Context& context, const VolumeArguments& arguments) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<VolumeInfo> volume = Find(&*cluster, arguments.name);
  if (!volume.ok()) return context.Fail(volume.status());
  if (!arguments.yes && !arguments.force) {
    return context.Fail(Status::InvalidArgument(
        fmt::format("deleting '{}' ({}) destroys all its data; add --yes if that is meant",
                    arguments.name, BytesText(volume->bytes))));
  }
  const Status deleted = cluster->DeleteVolume(arguments.name);
  if (!deleted.ok()) return context.Fail(deleted);
  if (context.json) {
    Print({{"deleted", arguments.name}});
  } else {
    std::cout << "deleted " << arguments.name << "\n";
  }
  return kExitOk;
}

}  // namespace

void AddVolumeCommands(CLI::App* app, Context* context) {
  const auto a = std::make_shared<VolumeArguments>();
  CLI::App* volume = app->add_subcommand("volume", "Make, look at, resize and delete volumes.");
  volume->require_subcommand(1);

  CLI::App* create = volume->add_subcommand("create", "Make a volume; returns when it is usable.");
  create->add_option("NAME", a->spec.name, "1 to 63 of a-z, 0-9, '-' and '.'")->required();
  create->add_option("--size", a->spec.bytes, "How large; takes no space before it is written to")
      ->transform(SizeOption())
      ->required();
  create->add_option("--block-size", a->spec.block_bytes, "4K (the default) to 64K")
      ->transform(SizeOption());
  create
      ->add_option("--logical-block", a->spec.logical_block,
                   "Of its iSCSI target: 512 (the default) or 4096; cannot be changed later")
      ->transform(SizeOption());
  create->add_option("--shards", a->spec.shards,
                     "Groups that share the volume; default 4, cannot be changed later");
  create->add_option("--replicas", a->spec.replicas, "Copies of each shard: 1, 3 (default) or 5");
  CLI::Option* show_target =
      create->add_flag("--target", a->target, "Print its iSCSI target and portals as well");
  create->add_flag("--no-target", a->no_target, "Do not offer it over iSCSI")
      ->excludes(show_target);
  create->callback([=] { context->action = [=] { return Create(*context, *a); }; });

  CLI::App* list = volume->add_subcommand("list", "All volumes.");
  list->add_flag("-q,--quiet", a->quiet, "Names only");
  list->callback([=] { context->action = [=] { return List(*context, a->quiet); }; });

  CLI::App* show = volume->add_subcommand("show", "One volume and its shards.");
  show->add_option("VOLUME", a->name)->required();
  show->callback([=] { context->action = [=] { return ShowAll(*context, a->name); }; });

  CLI::App* resize = volume->add_subcommand("resize", "Change a volume's size.");
  resize->add_option("VOLUME", a->name)->required();
  resize->add_option("--size", a->bytes, "The new size")->transform(SizeOption())->required();
  resize->add_flag("--force", a->force, "Shrink, destroying what lies behind the new end");
  resize->add_flag("--yes", a->yes, "The same as --force");
  resize->callback([=] { context->action = [=] { return Resize(*context, *a); }; });

  CLI::App* remove = volume->add_subcommand("delete", "Delete a volume and all its data.");
  remove->add_option("VOLUME", a->name)->required();
  remove->add_flag("--yes", a->yes, "Do not ask: it is meant");
  remove->add_flag("--force", a->force, "The same as --yes");
  remove->callback([=] { context->action = [=] { return Delete(*context, *a); }; });
}

}  // namespace hydra::ctl
