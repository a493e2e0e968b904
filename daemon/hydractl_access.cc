// SPDX-License-Identifier: Apache-2.0
//
// hydractl target acl|chap|enable|disable: who may use a target, and how they prove who they are.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"
#include "iscsi/access.h"
#include "iscsi/chap.h"
#include "iscsi/target_name.h"

namespace hydra::ctl {
namespace {

constexpr size_t kMaxSecretFile = 4096;

struct AccessArguments {
  std::string volume;
  TargetChange change;
  bool off = false;
  std::string user;
  std::string secret_file;
  std::string mutual_user;
  std::string mutual_secret_file;
};

std::string VolumeOf(const std::string& name) {
  return name.starts_with(iscsi::kTargetPrefix) ? name.substr(iscsi::kTargetPrefix.size()) : name;
}

Result<VolumeInfo> Look(Cluster* cluster, const std::string& name) {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<VolumeInfo> volumes, cluster->volumes());
  for (const VolumeInfo& volume : volumes) {
    if (volume.name == name) return volume;
  }
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl target list` shows what there is", name));
}

void PrintRules(const TargetInfo& target) {
  if (!target.offered) {
    std::cout << "not offered over iSCSI; `hydractl target enable` does\n";
  }
  if (!target.restricted) {
    std::cout << "open: every initiator may use it\n";
  } else if (target.allowed.empty()) {
    std::cout << "closed: no initiator may use it\n";
  } else {
    std::cout << "these initiators may use it:\n";
    for (const std::string& rule : target.allowed) std::cout << "  " << rule << "\n";
  }
}

// The first line, or all there is: an editor ends it, printf does not.
Result<std::string> ReadSecret(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return Status::NotFound(fmt::format("cannot read '{}'", path));
  }
  std::istream& from = path == "-" ? std::cin : file;
  std::string text;
  for (char c = 0; text.size() <= kMaxSecretFile && from.get(c);) text.push_back(c);
  if (text.size() > kMaxSecretFile) {
    return Status::InvalidArgument(fmt::format("'{}' is too long to hold a secret", path));
  }
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.find('\n') != std::string::npos) {
    return Status::InvalidArgument(
        fmt::format("'{}' has several lines: put nothing but the secret into it", path));
  }
  return text;
}

// Checked here as well, so that a secret that is refused goes nowhere.
Status ReadAccounts(const AccessArguments& a, TargetChange* change) {
  change->set_chap = true;
  if (a.off) return Status::Ok();
  if (a.secret_file == "-" && a.mutual_secret_file == "-") {
    return Status::InvalidArgument("only one of the two secrets can come from standard input");
  }
  iscsi::ChapAccounts accounts;
  HYDRA_ASSIGN_OR_RETURN(std::string secret, ReadSecret(a.secret_file));
  accounts.initiator = {a.user, secret};
  change->chap = {a.user, std::move(secret)};
  if (!a.mutual_user.empty()) {
    HYDRA_ASSIGN_OR_RETURN(std::string mutual, ReadSecret(a.mutual_secret_file));
    accounts.target = {a.mutual_user, mutual};
    change->mutual = {a.mutual_user, std::move(mutual)};
  }
  return accounts.Check();
}

// Says what was not there to be removed: a wrong name would else go unnoticed.
void NoteUnlisted(const TargetInfo& before, const std::vector<std::string>& removed) {
  for (const std::string& name : removed) {
    const Result<std::string> rule = iscsi::NormalRule(name);
    const bool listed = rule.ok() && std::find(before.allowed.begin(), before.allowed.end(),
                                               *rule) != before.allowed.end();
    if (!listed) std::cerr << fmt::format("hydractl: '{}' was not in the list\n", name);
  }
}

int ChangeRules(const Context& context, const AccessArguments& a, bool change) {
  const std::string name = VolumeOf(a.volume);
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  Result<VolumeInfo> volume = Look(&*cluster, name);
  if (!volume.ok()) return context.Fail(volume.status());
  if (change) {
    const Status changed = cluster->ChangeTarget(name, a.change);
    if (!changed.ok()) return context.Fail(changed);
    if (!context.json) NoteUnlisted(volume->target, a.change.remove);
    volume = Look(&*cluster, name);
    if (!volume.ok()) return context.Fail(volume.status());
  }
  if (context.json) {
    Print(AccessJson(*volume));
  } else {
    PrintRules(volume->target);
  }
  return kExitOk;
}

int ChangeChap(const Context& context, const AccessArguments& a, bool change) {
  const std::string name = VolumeOf(a.volume);
  TargetChange accounts;
  if (change) {
    const Status read = ReadAccounts(a, &accounts);
    if (!read.ok()) return context.Fail(read);
  }
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  if (change) {
    const Status changed = cluster->ChangeTarget(name, accounts);
    if (!changed.ok()) return context.Fail(changed);
  }
  const Result<VolumeInfo> volume = Look(&*cluster, name);
  if (!volume.ok()) return context.Fail(volume.status());
  const TargetInfo& target = volume->target;
  if (context.json) {
    Print(AccessJson(*volume));
  } else if (target.chap_user.empty()) {
    std::cout << "no CHAP account of its own; what nodes were started with applies "
                 "(--iscsi-chap-file)\n";
  } else {
    std::cout << fmt::format(
        "initiators prove to be '{}'{}\n", target.chap_user,
        target.mutual_user.empty() ? "" : fmt::format(", the target '{}'", target.mutual_user));
  }
  return kExitOk;
}

int Offer(const Context& context, AccessArguments a, bool offered) {
  a.change = {};
  a.change.offered = offered;
  return ChangeRules(context, a, true);
}

}  // namespace

Json AccessJson(const VolumeInfo& volume) {
  const TargetInfo& target = volume.target;
  return {{"volume", volume.name},           {"offered", target.offered},
          {"restricted", target.restricted}, {"allowed", target.allowed},
          {"chap_user", target.chap_user},   {"mutual_user", target.mutual_user}};
}

std::string AccessText(const TargetInfo& target) {
  if (!target.offered) return "off";
  const std::string who =
      target.restricted ? fmt::format("{} listed", target.allowed.size()) : std::string("everyone");
  return target.chap_user.empty() ? who : who + ", CHAP";
}

void AddAccessCommands(CLI::App* target, Context* context) {
  const auto a = std::make_shared<AccessArguments>();
  const auto add = [=](const char* name, const char* help) {
    CLI::App* command = target->add_subcommand(name, help);
    command->add_option("VOLUME", a->volume, "A volume, or the target's name")->required();
    return command;
  };
  CLI::App* acl = add("acl", "Who may use a target; without options: shows it.");
  const auto list = [acl](const char* names, std::vector<std::string>* into, const char* help) {
    return acl->add_option(names, *into, help)
        ->type_name("IQN")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  auto* allow = list("--allow", &a->change.allow,
                     "This initiator may (a name, or its beginning and '*'); from the first on, "
                     "only those listed; repeat it");
  auto* remove = list("--remove,--deny", &a->change.remove, "Take it off the list; repeat it");
  acl->add_flag("--close", a->change.close, "Nobody may; with --allow: nobody but these");
  acl->add_flag("--open", a->change.open, "Everyone may, which is so in the beginning")
      ->excludes(allow)
      ->excludes(remove)
      ->excludes("--close");
  acl->callback([=] {
    const TargetChange& c = a->change;
    const bool change = c.open || c.close || !c.allow.empty() || !c.remove.empty();
    context->action = [=] { return ChangeRules(*context, *a, change); };
  });

  CLI::App* chap = add("chap", "The CHAP account of a target; without options: shows it.");
  auto* user = chap->add_option("--user", a->user, "What initiators call themselves");
  auto* secret = chap->add_option("--secret-file", a->secret_file,
                                  "Holds what they prove to know, 12 to 255 bytes; -: input")
                     ->needs(user);
  user->needs(secret);
  auto* mutual = chap->add_option("--mutual-user", a->mutual_user, "What the target calls itself")
                     ->needs(user);
  mutual->needs(chap->add_option("--mutual-secret-file", a->mutual_secret_file,
                                 "... and proves to know; another secret than theirs")
                    ->needs(mutual));
  chap->add_flag("--off", a->off, "No account of its own")->excludes(user);
  chap->callback([=] {
    context->action = [=] { return ChangeChap(*context, *a, a->off || !a->user.empty()); };
  });

  CLI::App* enable =
      add("enable", "Offer a volume over iSCSI, as every one is unless told not to.");
  enable->callback([=] { context->action = [=] { return Offer(*context, *a, true); }; });
  CLI::App* disable = add("disable", "Do not, and end its sessions.");
  disable->callback([=] { context->action = [=] { return Offer(*context, *a, false); }; });
}

}  // namespace hydra::ctl
